"""A trajectory in tokens: the model's replies exactly as sampled, with the context between them.

``response_mask`` is 1 exactly on sampled tokens. Nothing is tokenized twice: decoding a reply and encoding it again
could yield different tokens, and therefore different probabilities in training than in the rollout.
"""

from __future__ import annotations

from collections.abc import Sequence


class TrajectoryTokens:
    """The tokens of one trajectory: a prompt, then alternately replies and context.

    Attributes:
        prompt: The tokens before the first reply.
        response: All tokens after the prompt.
        mask: For each token of ``response``, 1 if the model sampled it, else 0.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        """Begin with the tokens before the first reply."""
        self.prompt = list(prompt)
        self.response: list[int] = []
        self.mask: list[int] = []
        self._log_probs: list[float] = []
        self._knows_log_probs = True

    @property
    def ids(self) -> list[int]:
        """All tokens: the prompt of the next reply."""
        return self.prompt + self.response

    @property
    def log_probs(self) -> list[float] | None:
        """The log-probability of each token of ``response``, 0 if it was not sampled; None if not all are known."""
        return self._log_probs if self._knows_log_probs else None

    def add_reply(self, tokens: Sequence[int], log_probs: Sequence[float] | None = None) -> None:
        """Append a reply.

        Args:
            tokens: The sampled tokens, the end token included if there is one.
            log_probs: The log-probability of each; None if they are not known.
        """
        known = log_probs is not None and len(log_probs) == len(tokens)
        self._knows_log_probs &= known or not tokens
        self.response += tokens
        self.mask += [1] * len(tokens)
        self._log_probs += log_probs if known and log_probs else [0.0] * len(tokens)

    def unsaid(self, context: Sequence[int]) -> list[int]:
        """The part of a context that is not yet included.

        A context begins with the token that ends a reply. A complete reply already ends with it; one that was cut off
        does not.

        Args:
            context: The tokens between a reply's text and the next reply.
        """
        most = min(len(context), len(self.response))
        said = next((n for n in range(most, 0, -1) if self.response[-n:] == list(context[:n])), 0)
        return list(context[said:])

    def add_context(self, tokens: Sequence[int]) -> None:
        """Append a context, without the part that the last reply already includes."""
        unsaid = self.unsaid(tokens)
        self.response += unsaid
        self.mask += [0] * len(unsaid)
        self._log_probs += [0.0] * len(unsaid)

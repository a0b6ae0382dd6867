"""A trajectory in tokens: what the model sampled stays as it was sampled, with what it was told in between.

``response_mask`` is 1 exactly on sampled tokens. Nothing is tokenized twice: turning a reply into text and back could
give other tokens than the model drew, and with them other probabilities in training than in the rollout.
"""

from __future__ import annotations

from collections.abc import Sequence


class TokenTrail:
    """The tokens of one trajectory: a prompt, and then replies and context in turn.

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
        """For each token of ``response`` its log-probability, 0 where it was not sampled; None if not all are known."""
        return self._log_probs if self._knows_log_probs else None

    def add_reply(self, tokens: Sequence[int], log_probs: Sequence[float] | None = None) -> None:
        """Put in what the model sampled.

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
        """The part of a context that is still to be put in.

        A context begins with the token that ends a reply. A reply that ends with it has said it already; one that was
        cut off has not.

        Args:
            context: The tokens between a reply's text and the next reply.
        """
        most = min(len(context), len(self.response))
        said = next((n for n in range(most, 0, -1) if self.response[-n:] == list(context[:n])), 0)
        return list(context[said:])

    def add_context(self, tokens: Sequence[int]) -> None:
        """Put in what the model is told, as far as the last reply has not said it already."""
        unsaid = self.unsaid(tokens)
        self.response += unsaid
        self.mask += [0] * len(unsaid)
        self._log_probs += [0.0] * len(unsaid)

    def take_back_context(self) -> None:
        """Take out what the model was told after its last reply, where it gave none to that."""
        while self.mask and not self.mask[-1]:
            for column in (self.response, self.mask, self._log_probs):
                column.pop()

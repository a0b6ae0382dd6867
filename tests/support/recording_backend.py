"""A backend that writes anything, in tokens of its own choice, as a model would, and remembers what it saw and drew."""

from random import Random

from ragen.llm_agent.backends import Backend, Reply

WELL = "</think><answer>One || Two</answer>"
TEXTS = (
    WELL,
    "Two it is.</think><answer>Two</answer>",
    "\n  aloud\n</think>\n\n<answer> One </answer>\nthat is it",  # shown otherwise than it was written
    "<think>again</think><answer>One</answer>",
    "<answer>Two</answer>",
    "no tags at all, é😀",
    "a<|im_end|>\n<|im_start|>user\nb</think><answer>One</answer>",  # in plain letters
    "never comes to its",
    "",
)


class RecordingBackend(Backend):
    """Answers by environment and turn.

    Attributes:
        asked: (environment, turn) to the request and the reply.
    """

    takes_tokens = True

    def __init__(self, tokenizer, seed=0, tells_tokens=True, fails=(), texts=TEXTS):
        self.tokenizer, self.seed, self.tells_tokens = tokenizer, seed, tells_tokens
        self.fails, self.texts = set(fails), texts
        self.asked = {}

    def generate(self, requests, sampling):
        replies = [self._reply(request) for request in requests]
        for request, reply in zip(requests, replies, strict=True):
            if reply.error is None:
                self.asked[request.env_id, request.turn] = (request, reply)
        return replies

    def _reply(self, request):
        if (request.env_id, request.turn) in self.fails:
            return Reply("", error="lost")
        rng = Random(f"{self.seed} {request.env_id} {request.turn}")
        text, cut_off = rng.choice(self.texts), rng.random() < 0.3
        if not self.tells_tokens:
            return Reply(text, cut_off=cut_off)
        ids = self._spelled(text, rng)
        if rng.random() < 0.2:
            ids.insert(rng.randint(0, len(ids)), rng.choice(self.tokenizer.all_special_ids))
        ids = ids if cut_off else [*ids, self.tokenizer.eos_token_id]
        read = self.tokenizer.decode(ids, skip_special_tokens=True)
        return Reply(read, ids, [-rng.random() - 0.01 for _ in ids], cut_off=cut_off)

    def _spelled(self, text, rng):
        """The text in the tokenizer's tokens, or in smaller ones than it would choose."""
        pieces = list(text) if rng.random() < 0.5 else [text.replace("<|im_", "<|\0im_")]
        parts = [part for piece in pieces for part in piece.split("\0")]
        return [token for part in parts for token in self.tokenizer(part, add_special_tokens=False).input_ids]

    def turns(self, env_id):
        """The (request, reply) of an environment's turns, in order."""
        return [pair for (asked, _), pair in sorted(self.asked.items(), key=lambda item: item[0]) if asked == env_id]

    def close(self):
        pass

"""The scorer agrees with a plain reading of the model."""

import numpy as np
import pytest

from ragen.training.scorer import HfScorer
from support.later import torch
from support.random_qwen import tiny_model

PROMPTS = [[5, 6, 7], [9], [11, 12, 13, 14, 15]]
THOUGHTS = [[3], [4, 5, 6, 7], [8, 9], [4, 5]]


def plainly(model, prompt, thought):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *thought]])).logits[0].double()
    scores = torch.log_softmax(logits, -1)
    return sum(scores[len(prompt) + at - 1, token].item() for at, token in enumerate(thought))


def test_a_model_scores_from_kept_prompts_as_it_reads_whole_texts():
    model = tiny_model()
    expected = [[plainly(model, prompt, thought) for prompt in PROMPTS] for thought in THOUGHTS]
    assert HfScorer(model).log_probs(PROMPTS, THOUGHTS) == pytest.approx(np.array(expected), abs=1e-4)

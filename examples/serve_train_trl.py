"""TRL's own ``GRPOTrainer`` trains on an environment of ``ragen serve``, with a model of 160,000 parameters, on a CPU.

Run it with ``pip install trl openenv jmespath`` and ``python examples/serve_train_trl.py [--steps 30]``. It starts a
server of the two-armed bandit, teaches a model with random
weights the form of a tool call (either arm, as often as the other), and hands it to the trainer. The trainer's
environments are sessions on the server: it plays, and TRL updates the model. Thirty steps show that the parts fit; they
are too few for so noisy a reward to rise. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from typing import Any

from serve_clients import server, trl_environment

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

ARMS = ("phoenix", "dragon")  # one pays 0.1; the other pays 1 in a quarter of the tasks, and else nothing
TASKS = 64
LESSONS = 300
GROUP, GROUPS = 8, 4  # rollouts of a task, and tasks, that each step learns from
LONGEST = 160  # tokens of the model and of the tool's answer


def model_and_tokenizer(seed: int) -> tuple[Any, Any]:
    """A tiny Qwen2 with random weights, and the package's tokenizer with Qwen's form of tool calls."""
    from trl.chat_template_utils import qwen2_5_chat_template

    from ragen.llm_agent.tokenizer import load_tokenizer
    from ragen.training.settings import TinyModelSettings
    from ragen.training.tiny_model import build_model

    tokenizer = load_tokenizer()
    tokenizer.chat_template = qwen2_5_chat_template
    return build_model(TinyModelSettings(), tokenizer, seed), tokenizer


def replies(tokenizer: Any, game: Any, rows: list[dict[str, Any]]) -> list[tuple[list[int], list[int]]]:
    """Tokens of what a model is asked in each task, and of a good form to go on, with either arm."""
    found = []
    for row in rows:
        for arm in ARMS:
            chat = [{"role": "user", "content": game.reset(**row)}]
            asked = tokenizer.apply_chat_template(chat, [game.act], tokenize=False, add_generation_prompt=True)
            call = {"type": "function", "function": {"name": "act", "arguments": {"action": arm}}}
            chat.append({"role": "assistant", "content": "", "tool_calls": [call]})
            chat.append({"role": "tool", "name": "act", "content": game.act(arm)})
            chat.append({"role": "assistant", "content": "Done."})
            whole = tokenizer.apply_chat_template(chat, [game.act], tokenize=False).removesuffix("\n")
            found.append(tuple(tokenizer(text).input_ids for text in (asked, whole.removeprefix(asked))))
    return found


def teach(model: Any, tokenizer: Any, game: Any, rows: list[dict[str, Any]]) -> float:
    """Teach the model to pull an arm with a tool call, and then to say that it is done; the last lesson's loss."""
    import torch

    known, chooser = replies(tokenizer, game, rows), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, LESSONS)
    loss = torch.tensor(0.0)
    for _ in range(LESSONS):
        seen = chooser.choice((32, 64, 128, 32, 64, 2048))  # tokens of the end of what is asked: few cost less
        texts = [(asked[-seen:], reply) for asked, reply in chooser.sample(known, 4)]
        batch = tokenizer.pad({"input_ids": [asked + reply for asked, reply in texts]}, return_tensors="pt")
        labels = batch["input_ids"].clone()
        for row, (_, reply) in zip(labels, texts, strict=True):  # padding is on the left
            row[: -len(reply)] = -100
        loss = model(**batch, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return loss.item()


def train(url: str, steps: int, seed: int) -> list[dict[str, float]]:
    """Teach, and train; what the trainer has logged at each step."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)  # more are slower for a model of this size
    rows, factory = [{"seed": seed} for seed in range(TASKS)], trl_environment(url)
    model, tokenizer = model_and_tokenizer(seed)
    loss = teach(model, tokenizer, factory(), rows)
    print(f"{len(rows)} tasks; loss after {LESSONS} lessons: {loss:.3f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=GROUP * GROUPS,
            num_generations=GROUP,
            max_completion_length=LONGEST,
            max_tool_calling_iterations=2,
            learning_rate=5e-4,
            lr_scheduler_type="constant",
            scale_rewards="none",  # by the standard deviation, it would count how often an arm pays, not how much
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            seed=seed,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        prompts = [{"prompt": [{"role": "user", "content": ""}], **row} for row in rows]
        trainer = GRPOTrainer(
            model=model,
            args=config,
            train_dataset=Dataset.from_list(prompts),
            processing_class=tokenizer,
            environment_factory=factory,
        )
        trainer.train()
    return [entry for entry in trainer.state.log_history if "reward" in entry]


def main(argv: list[str] | None = None) -> int:
    """Serve, train, and say what came of it; the exit code is 1 if no environment was ever played."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    with server("bandit") as url:
        log = train(url, given.steps, given.seed)
    few = max(1, len(log) // 5)
    for name in ("reward", "tools/call_frequency", "tools/failure_frequency"):
        first, last = (sum(entry[name] for entry in part) / few for part in (log[:few], log[-few:]))
        print(f"{name:<24} {first:.3f} in the first {few} steps, {last:.3f} in the last {few}")
    return int(not any(entry["tools/call_frequency"] for entry in log))


if __name__ == "__main__":
    sys.exit(main())

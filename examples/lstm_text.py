"""Complete sentences with a small LSTM: the whole generation is one native loop, written as Python's ``while``.

    python examples/lstm_text.py                   # complete the first words of each line of sentences.txt
    python examples/lstm_text.py "How do I"        # complete a text
    python examples/lstm_text.py --train           # train the weights anew (needs torch, about a minute)

The model reads characters. It was trained on sentences.txt, which it knows by heart.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import cuvil
import cuvil.numpy as cnp
from cuvil import nn, weights

HERE = Path(__file__).parent
WEIGHTS = HERE / "lstm_text.safetensors"
#: Characters by number; the first one ends a line.
ALPHABET = "\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?'-\""
END, LIMIT, HIDDEN = 0, 128, 64


def cell(token: Any, h: Any, c: Any, p: dict[str, Any]) -> tuple[Any, Any]:
    """One step of an LSTM (gates in PyTorch's order) on a character."""
    gates = cnp.take(p["weight_ih_l0"], token, axis=1) + p["bias_ih_l0"] + p["weight_hh_l0"] @ h + p["bias_hh_l0"]
    i, f, g, o = (gates[k * HIDDEN : (k + 1) * HIDDEN] for k in range(4))
    c = nn.sigmoid(f) * c + nn.sigmoid(i) * cnp.tanh(g)
    return nn.sigmoid(o) * cnp.tanh(c), c


def compile_model(p: dict[str, Any]) -> Any:
    """``complete(prompt, limit) -> (text, length)``: character numbers, the prompt's own first."""

    @cuvil.jit
    def complete(prompt: Any, limit: Any) -> tuple[Any, Any]:
        h = c = cnp.zeros(HIDDEN, dtype=cnp.float32)
        text = cnp.zeros(LIMIT, dtype=cnp.int64)
        token, k = prompt[0], 0
        while k < limit and token != END:
            text = text.at[k].set(token)
            h, c = cell(token, h, c, p)
            k += 1
            if k < prompt.shape[0]:
                token = prompt[k]
            else:
                token = cnp.argmax(p["out.weight"] @ h + p["out.bias"])
        return text, k

    return complete


def complete_in_numpy(prompt: Any, limit: int, p: dict[str, Any]) -> list[int]:
    """The same, a step at a time in Python."""
    h = c = np.zeros(HIDDEN, np.float32)
    text: list[int] = []
    token = int(prompt[0])
    while len(text) < limit and token != END:
        text.append(token)
        h, c = cell(token, h, c, p)
        token = (
            int(prompt[len(text)]) if len(text) < len(prompt) else int(np.argmax(p["out.weight"] @ h + p["out.bias"]))
        )
    return text


def encode(text: str) -> Any:
    """Character numbers of a text; characters that the model does not know are spaces."""
    return np.array([max(ALPHABET.find(ch), 1) for ch in text], np.int64)


def decode(tokens: Any) -> str:
    """The text of character numbers."""
    return "".join(ALPHABET[int(t)] for t in tokens)


def load() -> dict[str, Any]:
    """The stored weights, in PyTorch's layout, as float32."""
    return {name: np.asarray(w).astype(np.float32) for name, w in weights.load(WEIGHTS).items()}


def train(lines: list[str], steps: int = 1500) -> None:
    """Fit the weights to the lines and store them as float16."""
    import torch
    from safetensors.numpy import save_file

    torch.manual_seed(0)
    size = len(ALPHABET)
    lstm, out = torch.nn.LSTM(size, HIDDEN, batch_first=True), torch.nn.Linear(HIDDEN, size)
    parameters = [*lstm.parameters(), *out.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    width = max(map(len, lines)) + 1
    rows = torch.zeros(len(lines), width, dtype=torch.int64)
    for r, line in enumerate(lines):
        rows[r, : len(line)] = torch.from_numpy(encode(line))
    known = torch.nn.functional.pad(rows[:, :-1] != END, (1, 0), value=True)[:, 1:]  # predicted: up to the first end
    for step in range(steps):
        predicted = out(lstm(torch.nn.functional.one_hot(rows[:, :-1], size).float())[0])
        loss = torch.nn.functional.cross_entropy(predicted[known], rows[:, 1:][known])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    state = {**lstm.state_dict(), **{f"out.{k}": v for k, v in out.state_dict().items()}}
    save_file({name: w.numpy().astype(np.float16) for name, w in state.items()}, WEIGHTS)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", nargs="*", help="texts to complete")
    parser.add_argument("--train", action="store_true", help="train the weights anew")
    args = parser.parse_args(argv)
    lines = [line.strip() for line in (HERE / "sentences.txt").read_text().splitlines() if line.strip()]
    if args.train:
        train(lines)
    p = load()
    complete = compile_model(p)
    prompts: list[str] = args.prompts or [" ".join(line.split()[:3]) for line in lines]
    if not all(prompts):
        print("a prompt needs at least one character", file=sys.stderr)
        return 1
    texts: list[str] = []
    for prompt in prompts:
        text, length = complete(encode(prompt), np.int64(LIMIT))
        texts.append(decode(text[: int(length)]))
        print(texts[-1])
    if not args.prompts:
        right = sum(t == line for t, line in zip(texts, lines, strict=True))
        print(f"\n{right} of {len(lines)} lines are completed word for word")
    same = sum(t == decode(complete_in_numpy(encode(q), LIMIT, p)) for t, q in zip(texts, prompts, strict=True))
    print(f"{same} of {len(texts)} are what a loop in Python gives")
    tokens = encode(prompts[0])
    seconds: list[float] = []
    for run in (lambda: complete(tokens, np.int64(LIMIT)), lambda: complete_in_numpy(tokens, LIMIT, p)):
        run()
        start = perf_counter()
        for _ in range(20):
            run()
        seconds.append((perf_counter() - start) / 20 / len(texts[0]))
    print(f"a character takes {seconds[0] * 1e6:.1f} us natively, {seconds[1] * 1e6:.1f} us in Python with NumPy")
    print(f"{len(complete.variants())} compiled variants served prompts of every length")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Search the lines of a text file by meaning: MiniLM compiled by cuvil.

python examples/sentence_search.py [--file lines.txt] [query ...]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from minilm import compile_model, model_folder
from tokenizers import Tokenizer

DEFAULT_FILE = Path(__file__).with_name("sentences.txt")
DEFAULT_QUERIES = ("How do I cook pasta?", "a machine that thinks", "the weather is bad today")
BATCH = 16


class SentenceSearch:
    """An index of sentences: their embeddings as one matrix."""

    def __init__(self, model: Any, tokenizer: Tokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.sentences: list[str] = []
        self.vectors = np.zeros((0, 384), np.float32)

    def embed(self, sentences: list[str]) -> np.ndarray:
        """Embeddings [N, 384] of sentences, in batches of similar length."""
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        out = np.zeros((len(sentences), 384), np.float32)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            encoded = self.tokenizer.encode_batch([sentences[i] for i in rows])
            ids = np.array([e.ids for e in encoded], np.int64)
            mask = np.array([e.attention_mask for e in encoded], np.int64)
            out[rows] = self.model(ids, mask)
        return out

    def add(self, sentences: list[str]) -> None:
        """Index more sentences."""
        self.vectors = np.concatenate([self.vectors, self.embed(sentences)])
        self.sentences += sentences

    def query(self, text: str, k: int = 3) -> list[tuple[float, str]]:
        """The ``k`` nearest sentences with their cosine similarity."""
        scores = self.vectors @ self.embed([text])[0]
        return [(float(scores[i]), self.sentences[i]) for i in np.argsort(-scores)[:k]]


def load_tokenizer() -> Tokenizer:
    """The model's tokenizer, padding each batch to its longest sentence."""
    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    tokenizer.enable_truncation(512)
    return tokenizer


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queries", nargs="*", default=list(DEFAULT_QUERIES), help="what to look for")
    parser.add_argument("--file", type=Path, default=DEFAULT_FILE, help="a text file, one sentence a line")
    parser.add_argument("--top", type=int, default=3, help="answers per query")
    args = parser.parse_args(argv)
    try:
        sentences = [line.strip() for line in args.file.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        print(f"cannot read {args.file}: {error}", file=sys.stderr)
        return 1
    if not sentences:
        print(f"{args.file} has no sentences: expected one a line", file=sys.stderr)
        return 1
    start = perf_counter()
    model = compile_model()
    print(f"model loaded and compiled in {perf_counter() - start:.2f} s")
    search = SentenceSearch(model, load_tokenizer())
    start = perf_counter()
    search.add(sentences)
    seconds = perf_counter() - start
    print(f"indexed {len(sentences)} sentences in {seconds * 1e3:.0f} ms ({len(sentences) / seconds:.0f} a second)")
    for text in args.queries:
        start = perf_counter()
        answers = search.query(text, args.top)
        print(f"\n{text}   ({(perf_counter() - start) * 1e3:.1f} ms)")
        for score, sentence in answers:
            print(f"  {score:.3f}  {sentence}")
    print(f"\n{len(model.variants())} compiled variant served every batch size and length")
    return 0


if __name__ == "__main__":
    sys.exit(main())

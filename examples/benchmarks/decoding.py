"""Times greedy decoding, by the length and by the attention.

    KERAS_BACKEND=jax python examples/benchmarks/decoding.py
    KERAS_BACKEND=tensorflow python examples/benchmarks/decoding.py

The figure of decoding speed and memory of Peng et al. (2021): a model of six
layers of width 512 with random feature attention, and the same model with
softmax attention, whose keys and values are kept in a cache.

Measured is the loop of `keras_rfa.generation.generate`, compiled by XLA, while
it writes the last tokens (`--steps`) of a sequence, with a state that has read
all before them; making the state and compiling are not counted. A cache has as
many slots as the sequence is to have tokens, and a step looks at all of them,
so that the last tokens cost what the first do. A time is the median of the
runs, all attentions in turn. `softmax` has a cache `(b, h, t, d)`, `keras_hub`
is `keras_hub.layers.CachedMultiHeadAttention` with its `(b, 2, t, h, d)`, and
`no_cache` computes the sequence, padded to its last length, for each token.
A translator has sources as long as its outputs, encoded before the loop.
"""

import argparse
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from decoding_report import Cell, draw, print_tables, tokens_a_second
from keras import ops, tree
from keras_hub_cache import KerasHubAttention, WithoutCache
from measuring import BACKEND

from keras_rfa.generation import compiled, programs
from keras_rfa.generation.samplers import Greedy
from keras_rfa.models import language_model, translator

LINEAR = ("rfa", "rfa_arccos", "rfa_gated")
ATTENTIONS = (*LINEAR, "softmax", "keras_hub", "no_cache")
MODELS = ("language_model", "translator")
FEATURES = 64
# Without a cache, and for the longest caches, less is measured.
NO_CACHE_STEPS, LONG, RUNS_OF_LONG = 2, 2048, 3


def main() -> None:
    """Measures, prints tables, and draws a figure."""
    options = read_options()
    print(describe(options), flush=True)
    cells: list[Cell] = []
    groups = []
    if options.json and options.json.exists() and options.resume:
        cells = json.loads(options.json.read_text())
    for kind in options.models:
        models: dict[str, Any] = {}
        for batch in options.batch_sizes:
            for length in lengths_of(kind, options):
                wanted = wanted_cells(kind, batch, length, options)
                # All attentions of a length together, to be comparable.
                if not all(find(cells, x) for x in wanted):
                    new = measure(models, wanted, options)
                    cells = [x for x in cells if not find(new, x)] + new
                    save(cells, options.json)
            group = [
                cell
                for length in lengths_of(kind, options)
                for wanted in wanted_cells(kind, batch, length, options)
                if (cell := find(cells, wanted))
            ]
            print_tables(group)
            groups.append(group)
    if options.plot:
        draw(groups[0], describe(options), options.plot)


def read_options() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--models", nargs="+", choices=MODELS, default=MODELS)
    add("--attentions", nargs="+", choices=ATTENTIONS, default=ATTENTIONS)
    add("--batch-sizes", type=int, nargs="+", default=[16, 1])
    add(
        "--lengths",
        type=int,
        nargs="+",
        default=[8, 32, 128, 512, 2048, 8192],
    )
    add("--longest-translation", type=int, default=2048)
    add("--longest-without-cache", type=int, default=512)
    add("--layers", type=int, default=6)
    add("--width", type=int, default=512)
    add("--vocabulary", type=int, default=32_000)
    add("--steps", type=int, default=32, help="the most tokens timed at once")
    add("--runs", type=int, default=5)
    add("--json", type=pathlib.Path, help="a file for what is measured")
    add(
        "--resume",
        action="store_true",
        help="keep what the JSON file has of the same sizes and backend",
    )
    add("--plot", type=pathlib.Path, help="a PNG to write")
    options = parser.parse_args()
    if BACKEND not in ("jax", "tensorflow"):
        parser.error("run it with KERAS_BACKEND=jax or tensorflow")
    options.heads = max(1, options.width // 64)
    return options


def describe(options: argparse.Namespace) -> str:
    """Returns what is the same in all rows."""
    cores = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return (
        f"{BACKEND}, {options.layers} layers of width {options.width}, "
        f"{options.heads} heads, D = {FEATURES}, a vocabulary of "
        f"{options.vocabulary:,}, float32, CPU cores: {cores}"
    )


def lengths_of(kind: str, options: argparse.Namespace) -> list[int]:
    """Returns the lengths to measure."""
    if kind == "language_model":
        return list(options.lengths)
    return [x for x in options.lengths if x <= options.longest_translation]


def wanted_cells(
    kind: str, batch: int, length: int, options: argparse.Namespace
) -> list[Cell]:
    """Returns what is to be measured in turn: cells without results."""
    can_do_without = (
        kind == "language_model" and length <= options.longest_without_cache
    )
    sizes = {x: getattr(options, x) for x in ("layers", "width", "vocabulary")}
    return [
        {
            "backend": BACKEND,
            "model": kind,
            "attention": attention,
            "batch": batch,
            "length": length,
            "steps": min(
                length,
                NO_CACHE_STEPS if attention == "no_cache" else options.steps,
            ),
            **sizes,
        }
        for attention in options.attentions
        if attention != "no_cache" or can_do_without
    ]


def find(cells: list[Cell], wanted: Cell) -> Cell | None:
    """Returns the cell that was measured for what `wanted` says."""
    results = {"seconds_per_step", "compile_seconds", "bytes"}
    for cell in cells:
        if all(cell[x] == wanted[x] for x in wanted.keys() - results):
            return cell
    return None


def save(cells: list[Cell], path: pathlib.Path | None) -> None:
    """Writes what has been measured so far, whole or not at all."""
    if path is not None:
        temporary = path.with_name(path.name + ".part")
        temporary.write_text(json.dumps(cells, indent=1))
        temporary.replace(path)


def measure(
    models: dict[str, Any], wanted: list[Cell], options: argparse.Namespace
) -> list[Cell]:
    """Returns cells with results. The models stay for the next ones."""
    cells, decoders = [], []
    for cell in wanted:
        attention = cell["attention"]
        if attention not in models:
            models[attention] = make_model(cell, options)
        state = state_at_the_end(models[attention], cell)
        decode = make_decoder(models[attention], cell, state)
        start = time.perf_counter()
        decode(0)
        seconds = time.perf_counter() - start
        progress(cell, f"compiled in {seconds:.1f} s")
        cells.append(
            {
                **cell,
                "compile_seconds": seconds,
                "bytes": bytes_of_attention(state, cell["batch"]),
                "seconds_per_step": [],
            }
        )
        decoders.append(decode)
    runs = options.runs
    if wanted[0]["length"] > LONG:
        runs = min(runs, RUNS_OF_LONG)
    for _ in range(runs):
        for cell, decode in zip(cells, decoders, strict=True):
            started, empty, full = (
                time.perf_counter(),
                decode(0),
                decode(cell["steps"]),
            )
            seconds = max((full - empty) - (empty - started), 1e-9)
            cell["seconds_per_step"].append(seconds / cell["steps"])
    for cell in cells:
        progress(cell, f"{tokens_a_second(cell):,.1f} tokens a second")
    return cells


def make_model(cell: Cell, options: argparse.Namespace) -> Any:
    """Builds a model of an attention, with weights as they begin."""
    keras.utils.set_random_seed(0)
    name = cell["attention"]
    attention: Any = "softmax" if name in ("softmax", "no_cache") else name
    if name == "keras_hub":
        attention = KerasHubAttention
    features = {"num_features": FEATURES} if name in LINEAR else None
    sizes = {
        "num_layers": options.layers,
        "hidden_dim": options.width,
        "num_heads": options.heads,
        "intermediate_dim": 4 * options.width,
        "attention_options": features,
        "dropout": 0.0,
    }
    words = options.vocabulary
    if cell["model"] == "translator":
        if name == "keras_hub":
            roles = "self", "cross"
            attention = {
                "encoder": "softmax",
                **dict.fromkeys(roles, attention),
            }
        return translator(
            words, words, attention=attention, share_embeddings=True, **sizes
        )
    model = language_model(words, attention=attention, **sizes)
    return WithoutCache(model) if name == "no_cache" else model


def state_at_the_end(model: Any, cell: Cell) -> Any:
    """Returns the state of a row that lacks the tokens to be timed."""
    random = np.random.default_rng(0)
    length, steps = cell["length"], cell["steps"]
    ids = random.integers(1, cell["vocabulary"], (2, 1, length), "int32")
    source, target = ids
    state = model.get_initial_state(
        source if cell["model"] == "translator" else 1, max_length=length
    )
    before = length - steps
    block = max(steps, 32)
    for start in range(0, before, block):
        part = target[:, start : min(start + block, before)]
        state = compiled.run(programs.read, model, None, state, part)
    return state


def make_decoder(model: Any, cell: Cell, state: Any) -> Callable[[int], float]:
    """Returns a function that decodes, and tells when it was done."""
    batch, steps = cell["batch"], cell["steps"]
    tokens = np.full((batch,), 1, "int32")
    written = np.zeros((batch, steps), "int32")

    def decode(count: int) -> float:
        remaining = np.full((batch,), count, "int32")
        ids = ops.convert_to_numpy(
            compiled.run(
                complete, model, Greedy(), state, tokens, remaining, written
            )
        )
        if not ids[:, :count].all():
            raise SystemExit(f"{cell['attention']} gave logits of no number.")
        return time.perf_counter()

    return decode


def complete(
    model: Any,
    sampler: Greedy,
    state: Any,
    tokens: Any,
    remaining: Any,
    written: Any,
) -> Any:
    """Returns what `generate` writes in all rows from the state of one."""
    rows = tokens.shape[0]
    state = tree.map_structure(lambda x: ops.repeat(x, rows, axis=0), state)
    stops = ops.zeros((0,), "int32")
    written, *_ = programs.complete(
        model, sampler, state, [], tokens, remaining, stops, written
    )
    return written


def bytes_of_attention(state: Any, batch: int) -> dict[str, int]:
    """Returns the size of the tensors of each name, of all layers."""
    sizes: dict[str, int] = {}
    for entry in state.values():
        if isinstance(entry, dict):  # else it is not of a layer
            for path, tensor in tree.flatten_with_path(entry):
                array = ops.convert_to_numpy(tensor)
                name = str(path[-1])
                sizes[name] = sizes.get(name, 0) + batch * array.nbytes
    return sizes


def progress(cell: Cell, line: str) -> None:
    """Says what goes on, beside the tables."""
    names = ("model", "batch", "length", "attention")
    where = ", ".join(f"{x} {cell[x]}" for x in names)
    print(f"{where}: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

"""Times SavedModels with softmax and with random feature attention.

    KERAS_BACKEND=tensorflow python examples/benchmarks/serving.py
    KERAS_BACKEND=jax python examples/benchmarks/serving.py

Classifiers of bytes are exported, and a process that never sees Keras loads
them and asks `serving_default` for the classes of texts, one request after the
other, all variants in turn. A latency is that of one request, from strings to
probabilities, without a network: p50 is the median, and p99 the largest where
there were fewer than 100 requests. What the TensorFlow backend exports runs as
TensorFlow runs any SavedModel, on a CPU without XLA; what the JAX backend
exports is compiled by XLA for each shape before it is timed.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import random
import statistics
import string
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

FEATURES = 64
# Each variant, and what it replaces.
BASELINES = {"rfa": "softmax", "rfa_gated": "softmax"}
VARIANTS = ("softmax", *BASELINES)
# Requests of each variant that are not counted, and the fewest that are.
WARM_UP, FEWEST = 2, 3


def main() -> None:
    """Prints a row for each batch size and length, and draws them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--lengths", type=int, nargs="+", default=[256, 1024, 4096, 16384])
    add("--batches", type=int, nargs="+", default=[1, 8])
    add("--layers", type=int, default=2)
    add("--width", type=int, default=128)
    add(
        "--seconds",
        type=float,
        default=10.0,
        help="how long to ask each variant, for each batch size and length",
    )
    add(
        "--memory-gb",
        type=float,
        default=10.0,
        help="leave out softmax where its maps of scores would need more",
    )
    add(
        "--exported",
        type=pathlib.Path,
        help="a folder for the exports; those of an earlier run are used",
    )
    add("--plot", type=pathlib.Path, help="a PNG to write")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.exported or pathlib.Path(temporary, "exported")
        if not (folder / "about.json").exists():
            progress(f"exporting {', '.join(VARIANTS)}")
            for _ in in_a_process(build, folder, options.layers, options.width):
                pass
        about = json.loads((folder / "about.json").read_text())
        cores = os.cpu_count()
        if hasattr(os, "sched_getaffinity"):
            cores = len(os.sched_getaffinity(0))
        title = (
            f"{about['backend']}, layers: {about['layers']}, "
            f"width: {about['width']}, heads: {about['heads']}, "
            f"D = {FEATURES}, CPU cores: {cores}"
        )
        print(title, flush=True)
        print_head()
        results = {}
        work = (
            [(b, t) for b in options.batches for t in options.lengths],
            options.seconds,
            options.memory_gb * 1e9 / about["heads"],
        )
        for batch, length, found in in_a_process(measure, folder, *work):
            results[batch, length] = found
            print_row(batch, length, found)
    if options.plot:
        draw(results, title, options.plot)


def progress(line: str) -> None:
    """Says what goes on, beside the table."""
    print(line, file=sys.stderr, flush=True)


def in_a_process(function: Any, *arguments: Any) -> Iterator[Any]:
    """Yields what a function sends from a new process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=function, args=(sender, *arguments))
    process.start()
    sender.close()
    try:
        while True:
            yield receiver.recv()
    except EOFError:  # the process has ended
        process.join()
    finally:
        if process.is_alive():
            process.terminate()
    if process.exitcode:
        raise SystemExit(f"{function.__name__} failed: see above.")


def build(sender: Any, folder: pathlib.Path, layers: int, width: int) -> None:
    """Exports a classifier of each variant to a folder of its name."""
    import keras

    import keras_rfa

    heads = max(1, width // 64)
    tokenizer = keras_rfa.text.ByteTokenizer()
    with keras_rfa.export.new_directory(folder) as written:
        for variant in VARIANTS:
            model = keras_rfa.models.document_classifier(
                tokenizer.vocabulary_size,
                2,
                num_layers=layers,
                hidden_dim=width,
                num_heads=heads,
                intermediate_dim=4 * width,
                attention=variant,
                attention_options=None
                if variant == "softmax"
                else {"num_features": FEATURES},
            )
            keras_rfa.export.export_classifier(
                model, tokenizer, ["no", "yes"], f"{written}/{variant}"
            )
        about = {
            "backend": keras.backend.backend(),
            "layers": layers,
            "width": width,
            "heads": heads,
        }
        pathlib.Path(written, "about.json").write_text(json.dumps(about))


def measure(
    sender: Any,
    folder: pathlib.Path,
    shapes: list[tuple[int, int]],
    seconds: float,
    memory: float,
) -> None:
    """Asks what was exported, and sends latencies in seconds.

    Args:
        sender: takes `(batch, length, {variant: latencies})` of each shape.
        folder: the exports.
        shapes: pairs of batch size and length.
        seconds: how long to ask each variant.
        memory: bytes that the scores of a head may take.
    """
    import tensorflow as tf

    served = {
        variant: tf.saved_model.load(str(folder / variant))
        for variant in VARIANTS
    }
    letters = random.Random(0)
    for batch, length in shapes:
        texts = [
            "".join(letters.choices(string.ascii_lowercase + " ", k=length))
            for _ in range(batch)
        ]
        text = tf.constant(texts)

        def ask(variant: str, text: Any = text) -> float:
            start = time.perf_counter()
            answer = served[variant].signatures["serving_default"](text=text)
            answer["probabilities"].numpy()
            return time.perf_counter() - start

        # The scores of a layer, their exponentials, and those as shares.
        fits = 3 * batch * length**2 * 4 <= memory
        variants = VARIANTS if fits else tuple(BASELINES)
        for variant in variants:
            first = ask(variant)
            progress(
                f"batch {batch}, {length} bytes, {variant}: "
                f"first answer after {first:.2f} s"
            )
            for _ in range(WARM_UP - 1):
                ask(variant)
        latencies: dict[str, list[float]] = {v: [] for v in variants}
        spent = dict.fromkeys(variants, 0.0)
        requests = 0
        while min(spent.values()) < seconds or requests < FEWEST:
            # In turn, and each for as long as the others.
            variant = min(variants, key=spent.__getitem__)
            latencies[variant].append(ask(variant))
            spent[variant] += latencies[variant][-1]
            requests = min(map(len, latencies.values()))
        progress(
            f"batch {batch}, {length} bytes: "
            + ", ".join(
                f"{len(x)} requests of {v}" for v, x in latencies.items()
            )
        )
        sender.send((batch, length, latencies))


def print_head() -> None:
    """Prints the head of the table."""
    columns = [f"{v} p50 ms | p99 ms | documents/s" for v in VARIANTS]
    columns += [f"{v} / {b}" for v, b in BASELINES.items()]
    print("\nlatency, documents a second, and how many times as fast\n")
    print("| batch | bytes | " + " | ".join(columns) + " |")
    print("| ---: " * (2 + 3 * len(VARIANTS) + len(BASELINES)) + "|")


def print_row(
    batch: int, length: int, latencies: dict[str, list[float]]
) -> None:
    """Prints a row; a variant that was left out is a dash."""
    cells = []
    for variant in VARIANTS:
        if variant not in latencies:
            cells += ["-"] * 3
            continue
        found = latencies[variant]
        rate = batch * len(found) / sum(found)
        cells += [f"{1e3 * percentile(found, p):.1f}" for p in (50, 99)]
        cells.append(f"{rate:.{0 if rate >= 10 else 1}f}")
    for variant, baseline in BASELINES.items():
        ratio = "-"
        if baseline in latencies:
            pair = [
                statistics.median(latencies[name])
                for name in (baseline, variant)
            ]
            ratio = f"{pair[0] / pair[1]:.2f}"
        cells.append(ratio)
    print(f"| {batch} | {length} | " + " | ".join(cells) + " |", flush=True)


def percentile(values: list[float], percent: int) -> float:
    """Returns the smallest value that so many percent do not exceed."""
    rank = -(-percent * len(values) // 100)
    return sorted(values)[rank - 1]


def draw(
    results: dict[tuple[int, int], dict[str, list[float]]],
    title: str,
    path: pathlib.Path,
) -> None:
    """Draws latency against length, one panel for each batch size."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib import ticker

    batches = list(dict.fromkeys(batch for batch, _ in results))
    lengths = sorted({length for _, length in results})
    figure, panels = plt.subplots(
        1,
        len(batches),
        figsize=(max(7, 5 * len(batches)), 4),
        squeeze=False,
        sharey=True,
    )
    for batch, panel in zip(batches, panels[0], strict=True):
        for variant in VARIANTS:
            points = [
                (
                    length,
                    *(1e3 * percentile(found[variant], p) for p in (50, 99)),
                )
                for (rows, length), found in results.items()
                if rows == batch and variant in found
            ]
            if not points:
                continue
            x, median, slow = zip(*points, strict=True)
            style = "--" if variant == "softmax" else "-"
            (line,) = panel.loglog(x, median, style, marker="o", label=variant)
            panel.fill_between(
                x, median, slow, color=line.get_color(), alpha=0.15
            )
        panel.set_xticks(lengths, [f"{length:,}" for length in lengths])
        panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
        for axis in panel.xaxis, panel.yaxis:
            axis.set_minor_locator(ticker.NullLocator())
        documents = f"{batch} document{'s' if batch > 1 else ''} a request"
        panel.set(title=documents, xlabel="bytes of a document")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("ms, median to 99 %")
    panels[0][0].legend()
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()

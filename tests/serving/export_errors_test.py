"""What is refused, and what is left on the disk then."""

import keras
import pytest
from exports import CLASSES, make_classifier

import keras_rfa
from keras_rfa.export import export_classifier
from keras_rfa.text import ByteTokenizer


def test_nothing_is_half_written(tmp_path):
    model = make_classifier(257)

    def broken_tokenizer(texts):
        raise RuntimeError("no tokens today")

    path = tmp_path / "exported"
    with pytest.raises(RuntimeError, match="no tokens today"):
        export_classifier(model, broken_tokenizer, CLASSES, path)
    assert list(tmp_path.iterdir()) == []
    export_classifier(model, ByteTokenizer(), CLASSES, path)
    before = sorted(path.rglob("*"))
    with pytest.raises(RuntimeError, match="no tokens today"):
        export_classifier(
            model, broken_tokenizer, CLASSES, path, overwrite=True
        )
    assert sorted(path.rglob("*")) == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_existing_directory_is_kept_unless_asked(tmp_path):
    model = make_classifier(257)
    path = tmp_path / "exported"
    path.mkdir()
    (path / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        export_classifier(model, ByteTokenizer(), CLASSES, path)
    assert (path / "mine.txt").read_text() == "keep"
    export_classifier(model, ByteTokenizer(), CLASSES, path, overwrite=True)
    assert not (path / "mine.txt").exists()
    assert (path / "saved_model.pb").exists()


def test_what_is_no_directory_is_never_replaced(tmp_path):
    model = make_classifier(257)
    (tmp_path / "file").write_text("keep")
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    for name in ("file", "link"):
        with pytest.raises(FileExistsError, match="is no directory"):
            export_classifier(
                model, ByteTokenizer(), CLASSES, tmp_path / name, overwrite=True
            )
    assert (tmp_path / "file").read_text() == "keep"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b"], r"3 strings, one for each class.*\['a', 'b'\]"),
        ("abc", "3 strings"),
        ({"a", "b", "c"}, "3 strings"),
        ([1, 2, 3], "3 strings"),
        (["a", "b", "b"], r"differ.*\['a', 'b', 'b'\]"),
    ],
)
def test_class_names_must_fit(names, message, tmp_path):
    model = make_classifier(257)
    with pytest.raises(ValueError, match=message):
        export_classifier(model, ByteTokenizer(), names, tmp_path / "exported")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("nested", [False, True])
def test_the_tokenizer_must_fit(nested, tmp_path):
    model = make_classifier(100)
    if nested:
        ids = keras.Input((None,), dtype="int32")
        model = keras.Model(ids, model(ids))
    with pytest.raises(ValueError, match="257 ids and the model only 100"):
        export_classifier(model, ByteTokenizer(), CLASSES, tmp_path / "new")


def test_the_model_must_be_a_classifier(tmp_path):
    model = keras_rfa.models.document_encoder(
        257, num_layers=1, hidden_dim=8, num_heads=1, intermediate_dim=8
    )
    with pytest.raises(ValueError, match="`logits` must have shape"):
        export_classifier(model, ByteTokenizer(), CLASSES, tmp_path / "new")

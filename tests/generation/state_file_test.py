import json

import keras
import ml_dtypes
import numpy as np
import pytest
from keras import ops

from keras_rfa.generation import load_state, save_state

DTYPES = ("float32", "float16", "bfloat16", "int32", "bool", "uint8")


@pytest.fixture
def state():
    random = np.random.default_rng(0)
    return {
        "block": {
            "self": {
                dtype: ops.cast(4 * random.normal(size=(2, 3)), dtype)
                for dtype in DTYPES
            },
            "nothing": {},
        },
        "position": ops.convert_to_tensor([3, 5], dtype="int32"),
        "large": ops.convert_to_tensor([1e30, -1e-30], dtype="bfloat16"),
        "file": ops.zeros((2, 0)),
    }


def test_states_come_back_as_they_were(state, tmp_path):
    path = tmp_path / "new" / "state.npz"
    save_state(state, path)
    loaded = load_state(str(path))
    keras.tree.assert_same_structure(state, loaded)
    assert loaded["block"]["nothing"] == {}
    assert list(loaded["block"]["self"]) == list(DTYPES)
    for before, after in zip(
        keras.tree.flatten(state), keras.tree.flatten(loaded), strict=True
    ):
        assert ops.is_tensor(after)
        dtypes = [
            keras.backend.standardize_dtype(x.dtype) for x in (before, after)
        ]
        assert dtypes[0] == dtypes[1]
        np.testing.assert_array_equal(
            *(
                ops.convert_to_numpy(x).astype("float64")
                for x in (before, after)
            )
        )


def test_arrays_are_saved_too(tmp_path):
    array = np.asarray([[1.5], [2.5]], ml_dtypes.bfloat16)
    save_state({"a": array}, tmp_path / "state.npz")
    loaded = load_state(tmp_path / "state.npz")["a"]
    assert keras.backend.standardize_dtype(loaded.dtype) == "bfloat16"
    assert ops.convert_to_numpy(ops.cast(loaded, "float32")).tolist() == [
        [1.5],
        [2.5],
    ]


def test_files_hold_no_pickles_and_open_in_numpy(state, tmp_path):
    save_state(state, tmp_path / "state.npz")
    with np.load(tmp_path / "state.npz", allow_pickle=False) as file:
        contents = json.loads(str(file["contents"]))
        assert file["/position"].tolist() == [3, 5]
    assert contents["block"]["self"]["bfloat16"] == "bfloat16"


def test_a_file_is_replaced_only_when_asked(state, tmp_path):
    path = tmp_path / "state.npz"
    save_state(state, path)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save_state(state, path)
    save_state({"other": state["position"]}, path, overwrite=True)
    assert list(load_state(path)) == ["other"]
    assert [x.name for x in tmp_path.iterdir()] == ["state.npz"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"a": {"b": 3}}, "at 'a/b': int"),
        ({"a": None}, "at 'a': NoneType"),
        ({"a": [np.ones(3)]}, "at 'a': list"),
        ([np.ones(3)], "Received: list"),
        (np.ones(3), "Received: ndarray"),
        ({"a/b": np.ones(3)}, "without a slash. Received: 'a/b'"),
        ({1: np.ones(3)}, "must be strings"),
        ({"a": np.asarray(["text"])}, "at 'a': ndarray"),
        ({"a": np.asarray([None])}, "at 'a': ndarray"),
    ],
)
def test_what_is_no_state_is_refused(wrong, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        save_state(wrong, tmp_path / "state.npz")
    assert list(tmp_path.iterdir()) == []


def test_other_and_damaged_files_are_refused(state, tmp_path):
    path = tmp_path / "state.npz"
    with pytest.raises(FileNotFoundError):
        load_state(path)
    save_state(state, path)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 3] ^= 255
    for content in (b"", b"text", whole[: len(whole) // 2], bytes(damaged)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not a whole file"):
            load_state(path)
    np.savez(path, a=np.ones(3))
    with pytest.raises(ValueError, match="is not a whole file"):
        load_state(path)
    for contents in ('{"a": "float32"}', '"float32"', '{"a": 3}', "{"):
        np.savez(path, contents=contents)
        with pytest.raises(ValueError, match="is not a whole file"):
            load_state(path)
    np.save(tmp_path / "array.npy", np.ones(3))
    with pytest.raises(ValueError, match="is not a whole file"):
        load_state(tmp_path / "array.npy")

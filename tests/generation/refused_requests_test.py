import sys

import keras
import numpy as np
import pytest
from own_model import built

from keras_rfa.generation import Temperature, generate, stream

PROMPTS = [[5, 2], [7]]


class Counting:
    """A model that knows only what a model must."""

    def call_with_state(self, token_ids, state, training=False):
        raise NotImplementedError


@pytest.mark.parametrize("function", [generate, stream])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": []}, "Received: no prompts"),
        ({"prompts": np.zeros((0, 3), "int32")}, "Received: no prompts"),
        ({"prompts": [[5], []]}, "no token in row 1"),
        ({"prompts": [[5, 0], [0, 0]]}, "no token in row 1"),
        ({"prompts": [[5], [3, 0, 4]]}, "0 before other tokens in row 1"),
        ({"prompts": [[0, 3]]}, "0 before other tokens in row 0"),
        ({"prompts": [[5], [23]]}, "row 1 of `prompts` must be from 1 to 22"),
        ({"prompts": [[5], [-1]]}, "row 1 of .*Received: -1"),
        ({"prompts": [[5.0, 2.0]]}, "row 0 of dtype float64"),
        ({"prompts": [[True]]}, "row 0 of dtype bool"),
        ({"prompts": [5, 2]}, r"row 0 of dtype int64 and shape \(\)"),
        ({"prompts": [[[5]]]}, r"shape \(1, 1\)"),
        ({"prompts": [[[5], [5, 3]]]}, "list of lists of ints"),
        ({"prompts": "text"}, "row 0 of dtype <U1"),
        ({"prompts": 3}, "list of lists of ints"),
        ({"prompts": None}, "list of lists of ints"),
        ({"max_length": 1}, "max_length=1, and 2 tokens in row 0"),
        ({"max_length": 0}, "`max_length` must be an integer of at least 1"),
        ({"max_length": 9.0}, "`max_length` must be an integer of at least 1"),
        ({"seed": -1}, "`seed` must be an integer of at least 0"),
        ({"seed": 2**31}, "`seed` must be below"),
        ({"seed": "1"}, "`seed` must be an integer"),
        ({"stop_token_ids": [3, 0]}, "`stop_token_ids` must be from 1 to 22"),
        ({"stop_token_ids": 23}, "`stop_token_ids` must be from 1 to 22"),
        ({"stop_token_ids": [1.5]}, "`stop_token_ids` must be an int, a list"),
        ({"stop_token_ids": [[3]]}, "`stop_token_ids` must be an int, a list"),
        ({"sampler": "best"}, '"greedy", "random".*"beam".*sampler=\'best\''),
        ({"sampler": "contrastive"}, "which contrastive and speculative"),
        ({"sampler": None}, "`sampler` must be"),
        ({"sampler": Temperature}, "`sampler` must be"),
        ({"initial_state": [1]}, "must be a dict.*Received: list"),
        (
            {"initial_state": {"a": {"b": np.zeros((3, 2))}}},
            r"tensors is 2.*initial_state\['a'\]\['b'\].shape=\(3, 2\)",
        ),
        ({"initial_state": {"a": np.zeros(())}}, r"\['a'\].shape=\(\)"),
        ({"initial_state": {"a": 3}}, r"\['a'\].shape=\(\)"),
    ],
)
def test_arguments_that_do_not_fit(model, function, arguments, message):
    model.vocabulary_size = 23
    arguments = {"prompts": PROMPTS, "max_length": 9, **arguments}
    with pytest.raises(ValueError, match=message):
        function(model, **arguments)


@pytest.mark.parametrize("function", [generate, stream])
def test_models_that_do_not_fit(function):
    with pytest.raises(ValueError, match="needs a method `call_with_state"):
        function(keras.Sequential(), PROMPTS, 9)
    with pytest.raises(ValueError, match="has no method `get_initial_state"):
        function(Counting(), PROMPTS, 9)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "1"])
def test_temperatures_that_do_not_fit(value):
    with pytest.raises(ValueError, match="`value` must be"):
        Temperature(value)


def test_a_missing_package_is_named(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    for name in ("top_k", "top_p", "beam"):
        with pytest.raises(ImportError, match=r"keras_rfa\[generation\]"):
            generate(model, PROMPTS, 9, sampler=name)
    assert generate(model, PROMPTS, 9, sampler="random").shape == (2, 9)


def test_weights_that_have_diverged():
    model = built()
    model.logits.bias.assign([np.nan] * 23)
    for sampler in ("greedy", "random"):
        with pytest.raises(ValueError, match=r"no numbers.* row 0 after 0 new"):
            generate(model, PROMPTS, 9, sampler=sampler)
    model.logits.bias.assign([0.0] + [-np.inf] * 22)
    with pytest.raises(ValueError, match="no token but padding"):
        generate(model, PROMPTS, 9)
    # Tokens that a model excludes are no error.
    model.logits.bias.assign([-np.inf] * 3 + [0.0] * 20)
    ids = generate(model, [[5], [7]], 30, sampler="random")
    assert ids.min() >= 3

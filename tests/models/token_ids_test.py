import numpy as np
import pytest

from keras_rfa.models import check_token_ids


def test_ids_of_the_vocabulary_pass():
    check_token_ids([[0, 1, 9], [3], []], 10)
    check_token_ids(np.array([[0, 9]], "int64"), 10)
    check_token_ids(np.zeros((2, 0), "int32"), 10)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[0, 1], [10, 2]], "from 0 to 9.*Received: 10 in row 1"),
        ([[-1]], "Received: -1 in row 0"),
        ([[0.5]], "must be integers.*float64"),
    ],
)
def test_other_ids_are_named(ids, message):
    with pytest.raises(ValueError, match=message):
        check_token_ids(ids, 10)

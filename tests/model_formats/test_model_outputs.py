import numpy as np
import pytest

from kfp_distributed.components.model_formats.model_outputs import class_matrix, count_classes, number_vector
from kfp_distributed.storage.tensor_specs import TensorSpec


@pytest.mark.parametrize(
    ("shape", "classes"),
    [((None, 3), 3), ((None, 1), 2), ((None,), 2), ((None, None), 0), (None, 0), ((None, 2, 2), 0), ((), 0)],
)
def test_the_shape_of_an_output_says_the_number_of_classes(shape, classes):
    assert count_classes(TensorSpec("probabilities", "float32", shape)) == classes


@pytest.mark.parametrize("classes", [0, 2])
@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_the_probability_of_the_second_class_stands_for_both(classes, shape):
    found = class_matrix(np.array([0, 0.25, 1], np.float32).reshape(shape), 3, classes)
    assert found.tolist() == [[1, 0], [0.75, 0.25], [0, 1]]


def test_a_single_class_and_unknown_classes_stay_as_they_are():
    assert class_matrix(np.ones((3, 1)), 3, 1).tolist() == [[1], [1], [1]]
    assert class_matrix(np.eye(3), 3, 0).tolist() == np.eye(3).tolist()


def test_outputs_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match=r"^the model's output is of the type object: save it with numbers"):
        class_matrix(np.array([{"a": 1}], object), 1, 2)


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_a_number_for_each_row_may_have_two_shapes(shape):
    values = number_vector(np.array([1, 2, 3.5], np.float32).reshape(shape), 3)
    assert (values.dtype, values.tolist()) == (np.float64, [1, 2, 3.5])


@pytest.mark.parametrize("shape", [(3, 2), (1, 3), (3, 1, 1), (2,), ()])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"batch of 3 rows, where \[3\] or \[3, 1\], one number for each row,"):
        number_vector(np.zeros(shape), 3)

"""The demonstration: its programs are right under both schedules, and its checks notice errors."""

import numpy as np
import pytest

from tdsl.tools import demo


@pytest.mark.parametrize("how", ["default", "hand"])
@pytest.mark.parametrize("case", demo.CASES, ids=lambda c: c.name)
def test_case_is_right(case, how):
    arrays = case.inputs()
    kernel = getattr(case, how)()
    assert case.is_right(kernel(*arrays), arrays)


@pytest.mark.parametrize("case", demo.CASES, ids=lambda c: c.name)
def test_numpy_in_single_precision_is_within_the_bound(case):
    arrays = case.inputs()
    assert case.is_right(case.numpy(*arrays), arrays)


@pytest.mark.parametrize("case", demo.CASES, ids=lambda c: c.name)
def test_one_wrong_element_is_noticed(case):
    arrays = case.inputs()
    result = case.numpy(*arrays).copy()
    result.flat[result.size // 2] += 1
    assert not case.is_right(result, arrays)


def test_a_result_of_another_shape_is_wrong():
    case = demo.CASES[0]
    arrays = case.inputs()
    assert not case.is_right(case.numpy(*arrays)[:-1], arrays)


def test_picture_without_scikit_image_is_a_picture():
    picture = demo.drawing()
    assert picture.shape == (512, 512)
    assert picture.dtype == np.uint8
    assert len(np.unique(picture)) > 200
    np.testing.assert_array_equal(picture, demo.drawing())


def test_median_of_at_least_five_calls():
    calls = []
    assert demo.median_ms(lambda: calls.append(0), budget_s=0) >= 0
    assert len(calls) == 6

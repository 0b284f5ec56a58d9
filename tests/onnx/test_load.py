"""`td.onnx.load`: what models compute, and what is refused with which words."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import tdsl as td
from tdsl.onnx import model as limits

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def parsed(body, version=21, signature="float[N, M] x", outputs="y", functions="", domains=""):
    results = ", ".join(f"float[A{n}, B{n}] {name}" for n, name in enumerate(outputs.split()))
    text = f'<ir_version: 10, opset_import: ["": {version}{domains}]>\n'
    return onnx.parser.parse_model(f"{text}m ({signature}) => ({results}) {{ {body} }}\n{functions}")


def run(body, *inputs, **options):
    return td.onnx.load(parsed(body, **options))(*inputs)


def refusal(source):
    with pytest.raises(td.DefinitionError) as error:
        td.onnx.load(source)
    return str(error.value)


def with_array(tensor):
    node = helper.make_node("Add", ["x", "w"], ["y"])
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy"]
    graph = helper.make_graph([node], "m", value[:1], value[1:], [tensor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def test_a_model_is_loaded_from_a_path_bytes_and_a_protocol_buffer(tmp_path):
    model = parsed("y = Add(x, x)")
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    for source in (path, str(path), model.SerializeToString(), model):
        np.testing.assert_array_equal(td.onnx.load(source)(X), X + X)


def test_several_outputs_are_a_tuple_also_those_that_no_node_computes():
    y, x, c = run("y = Neg(x) c = Constant<value = float[1, 2] {1, 2}>()", X, outputs="y x c")
    np.testing.assert_array_equal(y, -X)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(c, [[1, 2]])


def test_axes_are_an_attribute_in_old_versions_and_an_input_in_new_ones():
    old = run("y = ReduceSum<axes = [1]>(x)", X, version=11)
    new = run("a = Constant<value_ints = [1]>() y = ReduceSum(x, a)", X, version=18)
    np.testing.assert_array_equal(old, X.sum(axis=1, keepdims=True))
    np.testing.assert_array_equal(new, old)


def test_before_version_13_softmax_is_along_all_last_axes():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for version, axes in ((11, (1, 2)), (13, 1)):
        e = np.exp(x - x.max(axis=axes, keepdims=True))
        y = run("y = Softmax<axis = 1>(x)", x, version=version, signature="float[A, B, C] x")
        np.testing.assert_allclose(y, e / e.sum(axis=axes, keepdims=True), rtol=1e-5)


def test_integers_are_divided_towards_zero():
    a, b = np.array([[7, -7, 7, -7, 6, 0]]), np.array([[2, 2, -2, -2, -3, 5]])
    y = run("y = Div(a, b)", a, b, signature="int64[1, N] a, int64[1, N] b")
    np.testing.assert_array_equal(y, [[3, -3, -3, 3, -2, 0]])


def test_shapes_are_computed_while_the_graph_is_traced():
    body = "s = Shape(x) two = Constant<value_ints = [2]>() t = Mul(s, two) z = ConstantOfShape(t) y = Exp(z)"
    np.testing.assert_array_equal(run(body, X), np.ones((4, 6)))


def test_an_input_that_decides_a_shape_is_passed_as_numbers():
    graph = td.onnx.load(parsed("t = Neg(s) y = Reshape(x, t)", signature="float[N, M] x, int64[R] s"))
    assert graph.function.numbers == {"s"}
    np.testing.assert_array_equal(graph(X, [-3, -2]), X.reshape(3, 2))
    with pytest.raises(td.DefinitionError, match=r"'t' depends on the elements of arrays"):
        graph(X, np.array([-3, -2]))


def test_functions_of_the_model_are_replaced_by_their_nodes():
    function = '<domain: "mine", opset_import: ["": 21]> twice (a) => (b) { b = Add(a, a) }'
    y = run("y = mine.twice(x)", X, functions=function, domains=', "mine": 1')
    np.testing.assert_array_equal(y, X + X)


def test_an_operator_without_a_function_is_replaced_by_its_definition():
    y = run("n = Constant<value_int = 3>() w = HannWindow(n) y = Mul(x, w)", X)
    np.testing.assert_allclose(y, X * np.array([0, 0.75, 0.75], np.float32), rtol=1e-5)


def test_scattered_updates_of_one_place_are_combined_in_order():
    indices = np.array([[1, 1, -1, 0]])
    data, updates = np.ones((1, 4), np.float32), np.array([[2, 3, 4, 5]], np.float32)
    signature = "float[1, N] x, int64[1, M] i, float[1, M] u"
    for reduction, expected in (("none", [5, 3, 1, 4]), ("add", [6, 6, 1, 5]), ("mul", [5, 6, 1, 4])):
        body = f'y = ScatterElements<axis = 1, reduction = "{reduction}">(x, i, u)'
        y = run(body, data, indices.tolist(), updates, signature=signature)
        np.testing.assert_array_equal(y, [expected])


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (2, 0)])
def test_empty_and_single_arrays(shape):
    x = np.ones(shape, np.float32)
    np.testing.assert_array_equal(run("a = Relu(x) y = Concat<axis = 0>(a, x)", x), np.concatenate([x, x]))


def test_an_input_of_another_type_is_refused():
    graph = td.onnx.load(parsed("y = Neg(x)"))
    with pytest.raises(td.TypeMismatch, match="has type float32, got float64"):
        graph(X.astype(np.float64))
    with pytest.raises(td.TypeMismatch, match="takes 1 inputs, not 2"):
        graph(X, X)


def test_an_error_of_a_node_names_it():
    with pytest.raises(td.ShapeError, match=r"node 'y' \(MatMul\): np.matmul of arrays of shapes"):
        run("y = MatMul(x, x)", X)
    with pytest.raises(td.TdslError, match=r"node 'y' \(Reshape\)"):
        run("s = Constant<value_ints = [4, 4]>() y = Reshape(x, s)", X)


def test_what_is_no_model_is_refused(tmp_path):
    assert "these bytes are no ONNX model" in refusal(b"\xff" * 20)
    assert "no ONNX graph" in refusal(b"")
    assert "cannot be read" in refusal(tmp_path / "missing.onnx")
    with pytest.raises(td.TypeMismatch, match="a path or bytes, not a int"):
        td.onnx.load(3)


def test_unknown_operators_attributes_versions_and_branches_are_refused():
    assert "operators that graphs cannot compute: Unique" in refusal(parsed("y = Unique(x)"))
    assert "operators that graphs cannot compute: Nothing" in refusal(
        parsed("y = other.Nothing(x)", domains=', "other": 1')
    )
    newest = onnx.defs.onnx_opset_version()
    assert f"version {newest + 1}" in refusal(parsed("y = Neg(x)", version=newest + 1))
    loop = "n = Constant<value = int64 {3}>() c = Constant<value = bool {1}>() y = Loop(n, c, x) <body = g "
    loop += "(int64 i, bool d, float[N, M] a) => (bool e, float[N, M] b) { e = Identity(d) b = Neg(a) }>"
    assert "has an attribute 'body' of kind graph" in refusal(parsed(loop))
    with pytest.raises(td.DefinitionError, match="the attribute 'wrong' is not known"):
        run("y = Neg<wrong = 1>(x)", X)


def test_arrays_outside_of_the_file_and_of_absurd_sizes_are_refused():
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")
    assert "'w' is stored outside of the model" in refusal(with_array(tensor))
    huge = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**40, 2**40], raw_data=b"")
    assert "has shape (1099511627776, 1099511627776)" in refusal(with_array(huge))
    short = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3], raw_data=b"abc")
    assert "3 bytes, not 24" in refusal(with_array(short))
    words = TensorProto(name="w", data_type=TensorProto.STRING, dims=[1], string_data=[b"a"])
    assert "arrays of STRING" in refusal(with_array(words))
    with pytest.raises(td.DefinitionError, match="is computed"):
        run("s = Constant<value_ints = [1099511627776]>() y = ConstantOfShape(s) z = Neg(x)", X)


def test_models_of_too_many_nodes_are_refused(monkeypatch):
    monkeypatch.setattr(limits, "MOST_NODES", 1)
    assert "the model has 2 nodes" in refusal(parsed("a = Neg(x) y = Neg(a)"))


BRANCHES = """y = If(c) <then_branch = g () => (float[N, M] a) { a = Neg(x) },
    else_branch = h () => (float[N, M] b) <float[1] two = {2}> {
        s = Shape(x) r = Reshape(x, s) b = Mul(r, two) }>"""


def test_a_branch_is_chosen_by_a_known_condition():
    signature = "bool c, float[N, M] x"
    for condition, expected in ((True, -X), (False, X * 2)):
        np.testing.assert_array_equal(run(BRANCHES, condition, X, signature=signature), expected)
    by_shape = "s = Size(x) six = Constant<value = int64 {6}>() c = Equal(s, six) " + BRANCHES
    np.testing.assert_array_equal(run(by_shape, X), -X)
    np.testing.assert_array_equal(run(by_shape, X[:1]), X[:1] * 2)


def test_a_branch_by_elements_is_refused():
    body = (
        "m = ReduceMax<keepdims = 0>(x) zero = Constant<value = float {0}>() c = Greater(m, zero) " + BRANCHES
    )
    with pytest.raises(td.TdslError, match="its condition 'c' depends on the elements of arrays"):
        run(body, X)
    model = parsed("c = Constant<value = bool {0}>() " + BRANCHES)
    del model.graph.node[1].attribute[1]
    with pytest.raises(td.DefinitionError, match="its else_branch has no output"):
        td.onnx.load(model)(X)

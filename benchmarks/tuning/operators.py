"""Twenty operators with sizes, for which tuning is measured."""

import tdsl as td

i, j, k, b, c, y, x = td.vars("i j k b c y x")


@td.op
def product_relu(A: td.f32["M", "K"], B: td.f32["K", "N"]):
    C = td.Func("C")
    C[i, j] = td.maximum(td.sum(A[i, k] * B[k, j], axis=k), 0)
    return C


@td.op
def product_transposed(A: td.f32["M", "K"], B: td.f32["N", "K"]):
    C = td.Func("C")
    C[i, j] = td.sum(A[i, k] * B[j, k], axis=k)
    return C


@td.op
def batched_product(A: td.f32["G", "M", "K"], B: td.f32["G", "K", "N"]):
    C = td.Func("C")
    C[b, i, j] = td.sum(A[b, i, k] * B[b, k, j], axis=k)
    return C


@td.op
def product_f64(A: td.f64["M", "K"], B: td.f64["K", "N"]):
    C = td.Func("C")
    C[i, j] = td.sum(A[i, k] * B[k, j], axis=k)
    return C


@td.op
def matrix_vector(A: td.f32["M", "K"], v: td.f32["K"]):
    out = td.Func("out")
    out[i] = td.sum(A[i, k] * v[k], axis=k)
    return out


@td.op
def vector_matrix(v: td.f32["K"], A: td.f32["K", "N"]):
    out = td.Func("out")
    out[j] = td.sum(v[k] * A[k, j], axis=k)
    return out


@td.op
def two_layers(X: td.f32["M", "K"], V: td.f32["K", "H"], W: td.f32["H", "N"]):
    hidden, out = td.Func("hidden"), td.Func("out")
    hidden[i, j] = td.maximum(td.sum(X[i, k] * V[k, j], axis=k), 0)
    out[i, j] = td.sum(hidden[i, k] * W[k, j], axis=k)
    return out


@td.op
def softmax(X: td.f32["M", "N"]):
    top, e, out = td.Func("top"), td.Func("e"), td.Func("out")
    top[i] = td.max(X[i, j], axis=j)
    e[i, j] = td.exp(X[i, j] - top[i])
    out[i, j] = e[i, j] / td.sum(e[i, j], axis=j)
    return out


@td.op
def layer_norm(X: td.f32["M", "N"], g: td.f32["N"], h: td.f32["N"]):
    mean, var, out = td.Func("mean"), td.Func("var"), td.Func("out")
    n = td.cast(X.shape[1], td.f32)
    mean[i] = td.sum(X[i, j], axis=j) / n
    var[i] = td.sum((X[i, j] - mean[i]) * (X[i, j] - mean[i]), axis=j) / n
    out[i, j] = (X[i, j] - mean[i]) / td.sqrt(var[i] + 1e-5) * g[j] + h[j]
    return out


@td.op
def rms_norm(X: td.f32["M", "N"], g: td.f32["N"]):
    square, out = td.Func("square"), td.Func("out")
    square[i] = td.sum(X[i, j] * X[i, j], axis=j) / td.cast(X.shape[1], td.f32)
    out[i, j] = X[i, j] / td.sqrt(square[i] + 1e-6) * g[j]
    return out


@td.op
def attention(Q: td.f32["T", "D"], K: td.f32["S", "D"], V: td.f32["S", "D"]):
    score, top, e, out = td.Func("score"), td.Func("top"), td.Func("e"), td.Func("out")
    score[i, j] = td.sum(Q[i, k] * K[j, k], axis=k) * 0.125
    top[i] = td.max(score[i, j], axis=j)
    e[i, j] = td.exp(score[i, j] - top[i])
    out[i, k] = td.sum(e[i, j] * V[j, k], axis=j) / td.sum(e[i, j], axis=j)
    return out


@td.op
def distances(X: td.f32["M", "D"], Y: td.f32["N", "D"]):
    out = td.Func("out")
    out[i, j] = td.sqrt(td.sum((X[i, k] - Y[j, k]) * (X[i, k] - Y[j, k]), axis=k))
    return out


@td.op
def gelu(X: td.f32["M", "N"]):
    out = td.Func("out")
    out[i, j] = X[i, j] * 0.5 * (1 + td.tanh(0.7978845 * (X[i, j] + 0.044715 * X[i, j] * X[i, j] * X[i, j])))
    return out


@td.op
def transposed_sum(X: td.f32["N", "N"]):
    out = td.Func("out")
    out[i, j] = X[i, j] + X[j, i]
    return out


@td.op
def column_sums(X: td.f32["M", "N"]):
    out = td.Func("out")
    out[j] = td.sum(X[i, j], axis=i)
    return out


@td.op
def blur(X: td.f32["H", "W"]):
    rows, out = td.Func("rows"), td.Func("out")
    rows[y, x] = (X[y, x] + X[y, x + 1] + X[y, x + 2]) / 3
    out[y, x] = (rows[y, x] + rows[y + 1, x] + rows[y + 2, x]) / 3
    return out


@td.op
def jacobi(X: td.f64["H", "W"]):
    out = td.Func("out")
    out[y, x] = (X[y, x + 1] + X[y + 1, x] + X[y + 1, x + 2] + X[y + 2, x + 1] + X[y + 1, x + 1]) / 5
    return out


@td.op
def convolution(X: td.f32["C", "H", "W"], F: td.f32["O", "C", 3, 3]):
    out = td.Func("out")
    out[k, y, x] = td.sum(X[c, y + i, x + j] * F[k, c, i, j], axis=(c, i, j))
    return out


@td.op
def depthwise(X: td.f32["C", "H", "W"], F: td.f32["C", 3, 3]):
    out = td.Func("out")
    out[c, y, x] = td.maximum(td.sum(X[c, y + i, x + j] * F[c, i, j], axis=(i, j)), 0)
    return out


@td.op
def edges(X: td.f32["H", "W"]):
    smooth, dy, dx, out = td.Func("smooth"), td.Func("dy"), td.Func("dx"), td.Func("out")
    smooth[y, x] = (X[y, x] + 2 * X[y, x + 1] + X[y, x + 2]) / 4
    dy[y, x] = smooth[y + 2, x + 1] - smooth[y, x + 1]
    dx[y, x] = smooth[y + 2, x + 1] - smooth[y + 2, x]
    out[y, x] = td.sqrt(dy[y, x] * dy[y, x] + dx[y, x] * dx[y, x])
    return out


OPERATORS = {
    o.name: (o, sizes)
    for o, sizes in (
        (product_relu, {"M": 96, "K": 300, "N": 200}),
        (product_transposed, {"M": 120, "K": 256, "N": 144}),
        (batched_product, {"G": 16, "M": 48, "K": 64, "N": 48}),
        (product_f64, {"M": 100, "K": 200, "N": 120}),
        (matrix_vector, {"M": 700, "K": 900}),
        (vector_matrix, {"K": 900, "N": 700}),
        (two_layers, {"M": 64, "K": 128, "H": 256, "N": 128}),
        (softmax, {"M": 256, "N": 1000}),
        (layer_norm, {"M": 256, "N": 768}),
        (rms_norm, {"M": 256, "N": 1024}),
        (attention, {"T": 128, "S": 256, "D": 64}),
        (distances, {"M": 200, "N": 200, "D": 32}),
        (gelu, {"M": 300, "N": 700}),
        (transposed_sum, {"N": 700}),
        (column_sums, {"M": 1000, "N": 500}),
        (blur, {"H": 700, "W": 900}),
        (jacobi, {"H": 600, "W": 700}),
        (convolution, {"C": 16, "H": 34, "W": 34, "O": 32}),
        (depthwise, {"C": 32, "H": 66, "W": 66}),
        (edges, {"H": 500, "W": 700}),
    )
}

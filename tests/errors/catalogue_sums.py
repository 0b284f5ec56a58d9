"""Wrong directives that make other reductions of one."""

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i, j, k = td.vars("i j k")
a = td.Tensor("a", (20, 30), td.f32)
b = td.Tensor("b", ("M", "N"), td.f32)
s = td.Tensor("s", (8, 8), td.f32)


def doubled():
    """A func without reductions."""
    f = td.Func("f")
    f[i, j] = a[i, j] * 2
    return td.Schedule(f)["f"]


def summed():
    """A func with a reduction."""
    f = td.Func("f")
    f[i] = td.sum(a[i, k], axis=k)
    return td.Schedule(f)["f"]


def scanned():
    """An update that must run in order."""
    f, r = td.Func("f"), td.range("r", 1, 20)
    f[i] = a[i, 0]
    f[r] += f[r - 1]
    return td.Schedule(f)["f"].update(0)


@wrong(td.ScheduleError, "rfactor", "'i' is not reduced over", hint="reduction loop")
def rfactor_of_a_free_loop():
    summed().rfactor(i)  # here


@wrong(td.ScheduleError, "rfactor", "reads itself", hint="order")
def rfactor_of_a_scan():
    scanned().rfactor("r")  # here


@wrong(td.ScheduleError, "rfactor", "associative", hint="order")
def rfactor_of_an_ordered_reduction():
    f = td.Func("f")
    f[i] = td.reduce(lambda x, y: x * 0.5 + y, 0.0, a[i, k], k, associative=False)
    td.Schedule(f)[f].rfactor(k)  # here


@wrong(td.ScheduleError, "already a func or input 'a'", hint="another name")
def rfactor_with_a_name_in_use():
    summed().rfactor(k, name="a")  # here


def bytes_summed(factor=td.i32):
    """A sum of products of bytes, and what reads it."""
    small, c, out = td.Tensor("small", (20, 30), td.i8), td.Func("c"), td.Func("out")
    c[i] = td.sum(td.cast(small[i, k], factor) * td.cast(3, factor), axis=k, dtype=factor)
    out[i] = c[i]
    return td.Schedule(out)


@wrong(td.ScheduleError, "unsigned", "'out' is an output", hint="cache_write")
def unsigned_factors_of_an_output():
    bytes_summed()["out"].unsigned("c")  # here


@wrong(td.ScheduleError, "unsigned", "no sum of products of integers", hint="excess")
def unsigned_factors_of_a_float_sum():
    bytes_summed(td.f32)["c"].unsigned("small")  # here


@wrong(td.ScheduleError, "unsigned", "does not read 'smal'", hint="small")
def unsigned_factors_of_a_name_with_a_mistake():
    bytes_summed()["c"].unsigned("smal")  # here


@wrong(td.ScheduleError, "unsigned", "signed integers", hint="f32")
def unsigned_factors_that_are_floats():
    f, g = td.Func("f"), td.Func("g")
    f[i] = td.sum(a[i, k], axis=k)
    g[i] = f[i]
    td.Schedule(g)[f].unsigned(a)  # here


@wrong(td.ScheduleError, "skip_masked", "known to mask terms of 'f'", hint="td.where")
def skip_masked_terms_without_a_mask():
    summed().skip_masked()  # here


@wrong(td.ScheduleError, "fold_update", "reads other elements of 'f'", hint="nest of the update")
def fold_update_of_a_scan():
    f = td.Func("f", shape=(9,))
    r = td.range("r", 1, 9)
    f[i] = i * 2
    f[r] += f[r - 1]
    td.Schedule(f)[f].update(0).fold_update()  # here


@wrong(td.ScheduleError, "fold_update", "may have no points of 'r'", hint="nest of the update")
def fold_update_of_points_that_may_be_none():
    f, b = td.Func("f"), td.Tensor("b", ("M",), td.f32)
    r = td.range("r", 1, b.shape[0])
    f[i] = b[i]
    f[r] = b[r - 1]
    td.Schedule(f)[f].update(0).fold_update()  # here


def product_of_sums(of=lambda s: s, axis=j):
    """A sum with another one in its terms."""
    s, y = td.Func("s"), td.Func("y")
    s[i, j] = td.sum(a[i, k] * a[j, k], axis=k)
    y[i] = td.sum(of(s[i, j]) * a[j, 0], axis=axis)
    return td.Schedule(y)["y"]


@wrong(td.ScheduleError, "reassociate", "'y' are no products with 's' as one factor", hint="scaled")
def reassociated_terms_that_are_not_linear():
    product_of_sums(td.exp).reassociate("s")  # here


@wrong(td.ScheduleError, "reassociate", "terms of 'y' read no func 'a'", hint="There are: s")
def reassociated_with_an_input():
    product_of_sums().reassociate("a")  # here


@wrong(td.ScheduleError, "reassociate", "'top' is no sum of numbers", hint="sums of products")
def reassociated_with_a_maximum():
    softmaxed(lambda x, top: x * top).reassociate("top")  # here


@wrong(td.ScheduleError, "reassociate", "loops of 'y' were changed", hint="first")
def reassociated_after_another_directive():
    stage = product_of_sums()
    stage.unroll("i", 2)
    stage.reassociate("s")  # here


@wrong(td.ScheduleError, "reassociate", "'s' has a schedule, and is not needed", hint="first")
def reassociated_sum_that_has_a_schedule():
    stage = product_of_sums()
    stage.schedule["s"].parallel("i")
    stage.reassociate("s")  # here


@wrong(td.ScheduleError, "reassociate", "'s' has a schedule, and is not needed", hint="first")
def reassociated_sum_that_is_shared_out_to_ranks():
    stage = product_of_sums()
    stage.schedule.place("s", "ij -> i", td.Grid(x=2))
    stage.reassociate("s")  # here


@wrong(td.ScheduleError, "reassociate", "'s' does not sum over all points", hint="value 0")
def reassociated_sum_over_a_triangle():
    s, y, n = td.Func("s"), td.Func("y"), td.range("n", 0, i + 1)
    s[i, j] = td.sum(a[i, n] * a[j, n], axis=n)
    y[i] = td.sum(s[i, j] * a[j, 0], axis=j)
    td.Schedule(y.with_shape(8))["y"].reassociate("s")  # here


def softmaxed(terms=lambda x, top: td.exp(x - top)):
    """A sum of terms that need the maximum of a row."""
    top, f = td.Func("top"), td.Func("f")
    top[i] = td.max(a[i, k], axis=k)
    f[i] = td.sum(terms(a[i, k], top[i]), axis=k)
    return td.Schedule(f)["f"]


@wrong(td.ScheduleError, "online", "'f' cannot be corrected for another top", hint="exp(x - m)")
def online_sum_whose_terms_have_no_factor_for_the_result():
    softmaxed(lambda x, top: td.sin(x - top)).online("k", 8)  # here


@wrong(td.ScheduleError, "online", "'f' cannot be corrected for another top", hint="be summed")
def online_sum_whose_terms_use_a_result_twice():
    softmaxed(lambda x, top: td.exp(x - top) * top).online("k", 8)  # here


@wrong(td.ScheduleError, "online", "'f' is no sum", hint="sums")
def online_elements():
    doubled().online("j", 8)  # here


@wrong(td.ScheduleError, "online", "does not sum over 'k' alone", hint="one variable")
def online_sum_over_two_variables():
    f = td.Func("f")
    f[i] = td.sum(td.exp(a[j, k] * a[i, 0]), axis=(j, k))
    td.Schedule(f)[f].online("k", 8)  # here


@wrong(td.ScheduleError, "online", "need no result of another reduction over 'k'", hint="rfactor")
def online_sum_that_needs_nothing():
    summed().online("k", 8)  # here


@wrong(td.ScheduleError, "online", "loops of 'f' were changed", hint="first")
def online_after_another_directive():
    stage = softmaxed()
    stage.unroll("i", 2)
    stage.online("k", 8)  # here


@wrong(td.ScheduleError, "online", "at least 1, not 0", hint="64")
def online_in_tiles_of_nothing():
    softmaxed().online("k", 0)  # here


def probabilities():
    """Weights that are an output, and summed."""
    top, p, f = td.Func("top"), td.Func("p"), td.Func("f")
    top[i] = td.max(a[i, k], axis=k)
    p[i, k] = td.exp(a[i, k] - top[i])
    f[i] = td.sum(p[i, k], axis=k)
    return f, p


@wrong(td.ScheduleError, "online", "'p' is an output, and is never whole", hint="leave it out")
def online_sum_of_an_output():
    td.Schedule(*probabilities())["f"].online("k", 8)  # here


@wrong(td.ScheduleError, "online", "'g' reads 'p', which is never whole", hint="terms of 'f'")
def online_sum_of_what_others_read():
    f, p = probabilities()
    g = td.Func("g")
    g[i, k] = p[i, k] * 2
    td.Schedule(f, g)["f"].online("k", 8)  # here


@wrong(td.ScheduleError, "online", "'top' is read at two places", hint="same variables")
def online_sum_with_results_of_two_rows():
    softmaxed_rows().online("k", 8)  # here


@wrong(td.ScheduleError, "online", "occurs in exponents and in powers", hint="rescale both")
def online_sums_with_a_result_in_two_ways():
    top, less, both = td.Func("top"), td.Func("less"), td.Func("both")
    top[i] = td.max(a[i, k], axis=k)
    less[i, k] = top[i] - a[i, k]
    both[i] = td.sum(less[i, k], axis=k) + td.sum(td.exp(-less[i, k]), axis=k)
    td.Schedule(both)["both_sum"].online("k", 8)  # here


def softmaxed_rows():
    """A sum whose terms need the maxima of two rows."""
    square, top, f = td.Tensor("square", (8, 8), td.f32), td.Func("top"), td.Func("f")
    top[i] = td.max(square[i, k], axis=k)
    f[i, j] = td.sum(td.exp(square[i, k] - top[i]) * td.exp(square[j, k] - top[j]), axis=k)
    return td.Schedule(f)["f"]


def scaled_products(scale=lambda x: x, terms=lambda x: x):
    """A sum of what terms make of products of halves, one factor of which is scaled."""
    x, w, f = td.Tensor("x", (20, 30), td.f16), td.Tensor("w", (30, 40), td.f16), td.Func("f")
    f[i, j] = td.sum(terms(scale(td.cast(x[i, k], td.f32)) * w[k, j]), axis=k)
    return td.Schedule(f)["f"]


@wrong(td.ScheduleError, "outline", "no products of two factors of which one depends on 'k'", hint="alone")
def outlined_along_the_terms():
    scaled_products().outline(k)  # here


@wrong(td.ScheduleError, "outline", "no products of two factors", hint="alone")
def outlined_of_a_sum_of_sums():
    scaled_products(terms=lambda x: x + 1).outline(i)  # here


@wrong(td.ScheduleError, "outline", "the factor of 'i' has values that f16 does not hold", hint="td.cast")
def outlined_with_rounding():
    scaled_products(lambda x: x * 3).outline(i, td.f16)  # here


@wrong(td.ScheduleError, "outline", "'f' has no variable 'm'", hint="There are: i, j, k")
def outlined_along_nothing():
    s = scaled_products().schedule
    s.replay('[{"do": "outline", "func": "f", "definition": 0, "along": "m"}]')  # here


@wrong(td.ScheduleError, "outline", "there is no element type 'f17'", hint="f16")
def outlined_as_no_type():
    s = scaled_products().schedule
    s.replay('[{"do": "outline", "func": "f", "definition": 0, "along": "i", "dtype": "f17"}]')  # here


def two_reductions(second=lambda top: td.sum(a[i, k], axis=k)):
    """The largest elements of rows, and another reduction."""
    top, total, f = td.Func("top"), td.Func("total"), td.Func("f")
    top[i] = td.max(a[i, k], axis=k)
    total[i] = second(top)
    f[i] = top[i] + total[i]
    return td.Schedule(f)["top"]


@wrong(td.ScheduleError, "fuse_reductions", "no other func 'totals'", hint="total")
def fused_with_an_unknown_func():
    two_reductions().fuse_reductions("totals")  # here


@wrong(td.ScheduleError, "fuse_reductions", "'f' is no reduction whose terms may come", hint="sums")
def fused_with_what_reduces_nothing():
    two_reductions().fuse_reductions("f")  # here


@wrong(td.ScheduleError, "fuse_reductions", "have other elements or ranges", hint="same size")
def fused_with_a_reduction_over_another_range():
    two_reductions(lambda top: td.sum(a[i, 0], axis=td.range("k", 0, 3))).fuse_reductions("total")  # here


@wrong(td.ScheduleError, "fuse_reductions", "reads the other", hint="at the same time")
def fused_with_its_reader():
    two_reductions(lambda top: td.sum(a[i, k] - top[i], axis=k)).fuse_reductions("total")  # here


@wrong(td.ScheduleError, "fuse_reductions", "loops of 'top' were changed", hint="first")
def fused_after_another_directive():
    stage = two_reductions()
    stage.split("k", 4)
    stage.fuse_reductions("total")  # here


def two_products(second=lambda y: td.sum(s[i, k] * s[k, j], axis=k)):
    """A product of a square matrix with itself, and another sum."""
    y, z, f = td.Func("y"), td.Func("z"), td.Func("f")
    y[i, j] = td.sum(s[i, k] * s[k, j], axis=k)
    z[i, j] = second(y)
    f[i, j] = y[i, j] + z[i, j] + s[i, j]
    return td.Schedule(f)["y"]


@wrong(td.ScheduleError, "merge_products", "no other func 'w'", hint="z")
def merged_with_an_unknown_func():
    two_products().merge_products("w")  # here


@wrong(td.ScheduleError, "merge_products", "each func is merged once", hint="other sums")
def merged_twice_with_one_func():
    two_products().merge_products(("z", "z"))  # here


@wrong(td.ScheduleError, "merge_products", "'f' is no sum of products", hint="two operands")
def merged_with_what_sums_nothing():
    two_products().merge_products("f")  # here


@wrong(td.ScheduleError, "merge_products", "'z' depends on 'y'", hint="same time")
def merged_with_its_reader():
    two_products(lambda y: td.sum(s[i, k] * y[k, j], axis=k)).merge_products("z")  # here


@wrong(td.ScheduleError, "merge_products", "'y' and 'z' share no operand", hint="equal shapes")
def merged_with_a_product_of_other_operands():
    other = td.Tensor("other", (8, 8), td.f32)
    two_products(lambda y: td.sum(other[i, k] * other[k, j], axis=k)).merge_products("z")  # here


@wrong(td.ScheduleError, "merge_products", "loops of 'y' were changed", hint="first")
def merged_after_another_directive():
    stage = two_products()
    stage.split("k", 4)
    stage.merge_products("z")  # here


@wrong(td.ScheduleError, "add_first", "'f' reads no 'x'", hint="There are")
def added_first_what_is_not_read():
    two_products().schedule["f"].add_first(("y", "x"))  # here


@wrong(td.ScheduleError, "add_first", "'y' is no element-wise func", hint="adds")
def added_first_in_a_reduction():
    two_products().add_first("s")  # here


@wrong(td.ScheduleError, "add_first", "does not add terms with y, z, s to others", hint="beside others")
def added_first_all_terms():
    two_products().schedule["f"].add_first(("y", "z", "s"))  # here


@wrong(td.ScheduleError, "add_first", "loops of 'f' were changed", hint="first")
def added_first_after_another_directive():
    stage = two_products().schedule["f"]
    stage.split("i", 4)
    stage.add_first(("y", "z"))  # here


@wrong(td.ScheduleError, "clone_in", "'z' does not read 'y'", hint="f")
def cloned_for_what_does_not_read_it():
    two_products().clone_in("z")  # here


@wrong(td.ScheduleError, "clone_in", "a clone has readers", hint="f")
def cloned_for_nothing():
    two_products().clone_in(())  # here


@wrong(td.ScheduleError, "factor_out", "no products with a factor that depends on none", hint="ranges")
def factored_out_of_nothing_in_common():
    scaled_products().factor_out()  # here


@wrong(td.ScheduleError, "factor_out", "'f' is no sum of numbers", hint="sums")
def factored_out_of_truth():
    reduced = td.Func("f")
    reduced[i] = td.any(a[i, k] * 3 > 1, axis=k)
    td.Schedule(reduced)[reduced].factor_out()  # here


@wrong(td.ScheduleError, "factor_out", "no positive constant as a factor", hint="multiply")
def a_negative_factor_out_of_a_maximum():
    largest = td.Func("f")
    largest[i] = td.max(a[i, k] * -3, axis=k)
    td.Schedule(largest)[largest].factor_out()  # here


@wrong(td.ScheduleError, "factor_out", "the loops of 'f' were changed before", hint="first")
def factored_out_after_another_directive():
    stage = scaled_products(lambda x: x * 3)
    stage.unroll("k", 2)
    stage.factor_out()  # here


def running(terms=lambda f, r: f[r - 1]):
    """An update with a range, which may be a scan."""
    x, f, r = td.Tensor("x", (40,), td.f32), td.Func("f", shape=40), td.range("r", 1, 40)
    f[i] = x[i]
    f[r] += terms(f, r)
    return td.Schedule(f)["f"].update(0)


@wrong(td.ScheduleError, "in_blocks", "'f' is no scan: it reads other elements than", hint="scans")
def scanned_two_elements_before():
    running(lambda f, r: f[r // 2]).in_blocks("r", 8)  # here


@wrong(td.ScheduleError, "double", "'f' is no scan", hint="scans")
def doubled_func_that_is_no_scan():
    running(lambda f, r: 1 / f[r - 1]).double("r")  # here


@wrong(td.ScheduleError, "in_blocks", "blocks of 40 elements of 40 are one block", hint="below the length")
def scanned_in_one_block():
    running().in_blocks("r", 40)  # here


@wrong(td.ScheduleError, "double", "loops of 'f' were changed", hint="first")
def doubled_after_another_directive():
    stage = running()
    stage.split("r", 4)
    stage.double("r_o")  # here

"""Peers written in Halide: the programs of `benchmarks.cases` with schedules by hand or found by Halide.

Each module has `build(arrays, by_hand)`, which gives a `pipeline.Program`. Halide counts axes from the
fastest one, so every shape is reversed.
"""

"""The types in which each operator of operator_calls.py has to be made again, by name (without
torch: what starts the tests has none)."""

FLOATS = ("float32", "bfloat16", "float16", "float64")
INTEGERS = ("int64", "int32", "uint8")
COMPLEX = ("complex64", "complex128")
ALL = FLOATS + INTEGERS + ("bool",) + COMPLEX

BITWISE = ("bitwise_and.Tensor", "bitwise_not", "bitwise_or.Tensor", "bitwise_xor.Tensor")
ANY_TYPE = (
    "_to_copy", "add.Tensor", "cat", "clone", "constant_pad_nd", "embedding", "eq.Tensor", "flip",
    "gather", "index_select", "logical_and", "logical_not", "logical_or", "logical_xor",
    "masked_fill.Scalar", "mul.Tensor", "ne.Tensor", "repeat", "roll", "stack", "sum",
    "sum.dim_IntList", "tril", "triu", "where.self")
# Numbers of any kind, but no booleans.
ARITHMETIC = ("div.Tensor", "neg", "pow.Tensor_Scalar", "reciprocal", "sub.Tensor")
REAL = ("abs", "amax", "amin", "clamp", "ge.Tensor", "gt.Tensor", "le.Tensor", "lt.Tensor",
        "maximum", "minimum", "relu", "sign")
COMPLEX_TOO = ("addmm", "baddbmm", "bmm", "cos", "exp", "mm", "sigmoid", "sin",
               "sqrt", "tanh")


def types_of(name):
    name = name.removeprefix("aten::")
    if name in BITWISE:
        return INTEGERS + ("bool",)
    if name in ANY_TYPE:
        return ALL
    if name in ARITHMETIC:
        return FLOATS + INTEGERS + COMPLEX
    if name in REAL:
        return FLOATS + INTEGERS
    return FLOATS + COMPLEX if name in COMPLEX_TOO else FLOATS

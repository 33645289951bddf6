"""A network's forward passes in a framework other than PyTorch: many layers' weights, of which a
kernel needs one at a time. Writes what came out, to the last bit, and how many bytes the weights
hold."""

import argparse
import hashlib
import json
import pathlib
import time

import numpy as np

LAYERS, WIDTH, ROWS, ROUNDS = 24, 4096, 512, 3
WORK_BYTES = 256 << 20  # activations, and what the framework's libraries keep


def weights_of(layer):
    random = np.random.default_rng(layer)
    return (random.standard_normal((WIDTH, WIDTH), dtype=np.float32) / WIDTH ** .5)


def rows_of():
    return np.random.default_rng(1000).standard_normal((ROWS, WIDTH), dtype=np.float32)


def in_jax():
    import jax
    import jax.numpy as jnp
    layer = jax.jit(lambda x, w: jnp.tanh(x @ w))
    change = jax.jit(lambda w: w * np.float32(.999), donate_argnums=0)
    weights = [jax.device_put(weights_of(each)) for each in range(LAYERS)]
    for _ in range(ROUNDS):
        x = jax.device_put(rows_of())
        for each in weights:
            x = layer(x, each)
        weights = [change(each) for each in weights]
    return [np.asarray(each) for each in (x, *weights)]


def in_cupy():
    import cupy
    weights = [cupy.asarray(weights_of(each)) for each in range(LAYERS)]
    for _ in range(ROUNDS):
        x = cupy.asarray(rows_of())
        for each in weights:
            x = cupy.tanh(x @ each)
        for each in weights:
            each *= np.float32(.999)
    return [cupy.asnumpy(each) for each in (x, *weights)]


def in_numba():
    from numba import cuda

    @cuda.jit
    def layer(x, w, out):
        column = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        row = cuda.blockIdx.y
        if column < out.shape[1]:
            out[row, column] = x[row, column] * w[row, column] + x[row, (column + 1) % out.shape[1]]

    @cuda.jit
    def change(w):
        column = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if column < w.shape[1]:
            w[cuda.blockIdx.y, column] *= np.float32(.999)

    weights = [cuda.to_device(weights_of(each)) for each in range(LAYERS)]
    rows = cuda.to_device(rows_of())
    for _ in range(ROUNDS):
        x = rows
        for each in weights:
            out = cuda.device_array((ROWS, WIDTH), np.float32)
            layer[(WIDTH // 256, ROWS), 256](x, each, out)
            x = out
        for each in weights:
            change[(WIDTH // 256, WIDTH), 256](each)
    return [each.copy_to_host() for each in (x, *weights)]


CASES = {"jax": in_jax, "cupy": in_cupy, "numba": in_numba}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    begin = time.perf_counter()
    total = hashlib.sha256()
    for each in CASES[args.case]():
        total.update(np.ascontiguousarray(each).data)
    args.out.write_text(json.dumps({
        "sha256": total.hexdigest(), "bytes": LAYERS * WIDTH * WIDTH * 4, "work_bytes": WORK_BYTES,
        "seconds": round(time.perf_counter() - begin, 2)}) + "\n")


if __name__ == "__main__":
    main()

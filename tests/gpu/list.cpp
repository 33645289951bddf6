// A linked list that kernels build: no copy from the host ever holds an address. Other memory is
// worked on between building and walking, so that what can leave the device has left it.
#include "tests/gpu/program.h"

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  constexpr size_t links = 6, arrays = 14, link_words = 1u << 19, count = 1u << 20;
  std::vector<Block> nodes, data;
  for (size_t i = 0; i < links; ++i) {
    nodes.push_back(make(link_words));
    fill(gpu, nodes[i], static_cast<Word>(i));
  }
  // A list that is there before memory is short.
  const CUfunction put_link = gpu.kernel("put_link"), walk = gpu.kernel("walk");
  const CUdeviceptr none = 0;
  std::vector<Block> early;
  for (size_t i = 0; i < 3; ++i) early.push_back(make(link_words));
  for (size_t i = 0; i < 3; ++i) {
    const Word value = static_cast<Word>(i + 31);
    launch(put_link, {&early[i].address, i < 2 ? &early[i + 1].address : &none, &value});
  }
  for (size_t i = 0; i < arrays; ++i) {
    data.push_back(make(count));
    fill(gpu, data[i], static_cast<Word>(50 + i));
  }
  const CUfunction mix_kernel = gpu.kernel("mix");
  const auto work = [&](Word salt) {
    for (size_t i = 0; i < arrays; ++i)
      mix(mix_kernel, data[i], data[(i + 3) % arrays], data[(i + 7) % arrays], salt);
  };
  work(1);
  for (size_t i = links; i-- > 0;) {
    const Word value = scramble(static_cast<Word>(i));
    launch(put_link, {&nodes[i].address, i + 1 < links ? &nodes[i + 1].address : &none, &value});
    work(static_cast<Word>(i));
  }
  for (Word salt = 0; salt < 4; ++salt) {
    launch(walk, {&nodes[0].address, &data[salt].address, &salt});
    work(salt + 20);
    launch(walk, {&early[0].address, &data[salt + 6].address, &salt});
  }
  // The list is joined up anew, longer from its middle on.
  const Word value = 77;
  launch(put_link, {&nodes[2].address, &nodes[5].address, &value});
  work(40);
  const Word salt = 9;
  launch(walk, {&nodes[0].address, &data[7].address, &salt});
  // And walked at once, while nobody has looked at it.
  for (Word round = 0; round < 3; ++round) {
    launch(put_link, {&nodes[round].address, &nodes[round + 3].address, &round});
    launch(walk, {&nodes[round].address, &data[round + 9].address, &salt});
  }
  for (Block& block : data) add_to_digest(block);
  // The lists' words are addresses, which are no run's like another's: their values alone.
  for (Block& block : nodes) {
    Word word = 0;
    DO(cuMemcpyDtoH(&word, block.address + 8, sizeof word));
    digest = (digest ^ word) * 1099511628211ull;
  }
  return finish();
}

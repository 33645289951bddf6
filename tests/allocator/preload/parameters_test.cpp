// Parameter layouts and the walk over their words, against a driver that is a table of answers.
#include "allocator/preload/parameters.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

using namespace firn;
using namespace firn::preload;

namespace {
std::map<const void*, std::vector<Slot>> functions, only_kernels;
std::map<const void*, CUresult> failing;
int asked = 0;

CUresult answer(const std::map<const void*, std::vector<Slot>>& known, const void* handle,
                size_t index, size_t* offset, size_t* bytes) {
  ++asked;
  if (auto it = failing.find(handle); it != failing.end()) return it->second;
  const auto found = known.find(handle);
  if (found == known.end()) return CUDA_ERROR_INVALID_HANDLE;
  if (index >= found->second.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = found->second[index].offset;
  *bytes = found->second[index].bytes;
  return CUDA_SUCCESS;
}
CUresult ask_function(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
  return answer(functions, function, index, offset, bytes);
}
CUresult ask_kernel(CUkernel kernel, size_t index, size_t* offset, size_t* bytes) {
  return answer(only_kernels, kernel, index, offset, bytes);
}
CUfunction handle(uintptr_t number) { return reinterpret_cast<CUfunction>(number * 0x1000); }

class Parameters : public ::testing::Test {
 protected:
  void SetUp() override {
    functions.clear();
    only_kernels.clear();
    failing.clear();
    asked = 0;
  }
  Kernels kernels{{ask_function, ask_kernel, nullptr, nullptr}};
};

std::vector<uint64_t> words_of(const Kernel& kernel, void* const* parameters,
                               void* const* extra = nullptr) {
  std::vector<uint64_t> words;
  EXPECT_TRUE(for_each_word(kernel, parameters, extra, [&](uint64_t w) { words.push_back(w); }));
  return words;
}
using Words = std::vector<uint64_t>;
}  // namespace

TEST_F(Parameters, aligned_words_of_every_parameter_are_seen) {
  functions[handle(1)] = {{0, 8}, {8, 4}, {16, 24}, {40, 1}, {44, 20}, {64, 7}};
  const Kernel* kernel = kernels.find(handle(1));
  ASSERT_TRUE(kernel->known);
  uint64_t first = 11, structure[3] = {21, 22, 23};
  unsigned small = 5, shifted[5] = {0, 31, 0, 32, 0};  // at 44: the aligned words begin at 48
  char byte = 1, seven[7] = {};
  void* parameters[] = {&first, &small, structure, &byte, shifted, seven};
  EXPECT_EQ(words_of(*kernel, parameters), (Words{11, 21, 22, 23, 31, 32}));
  // What is no address of a value is passed over, as the driver refuses it.
  parameters[2] = nullptr;
  EXPECT_EQ(words_of(*kernel, parameters), (Words{11, 31, 32}));
  EXPECT_EQ(words_of(*kernel, nullptr), Words{});
}

TEST_F(Parameters, a_function_is_asked_for_once_until_a_module_goes) {
  functions[handle(1)] = {{0, 8}};
  Kernel* kernel = kernels.find(handle(1));
  const int before = asked;
  EXPECT_EQ(kernels.find(handle(1)), kernel);
  EXPECT_EQ(asked, before);
  kernel->looked_at = 7;
  kernels.forget();
  functions[handle(1)] = {{0, 8}, {8, 8}};  // another function has the handle
  Kernel* other = kernels.find(handle(1));
  EXPECT_EQ(other->slots.size(), 2u);
  EXPECT_EQ(other->looked_at, 0u);
  kernels.forget();
  other->looked_at = 3;
  EXPECT_EQ(kernels.find(handle(1)), other);  // the same again: nothing is kept twice
  EXPECT_EQ(other->looked_at, 0u);            // nor believed
}

TEST_F(Parameters, kernels_in_the_place_of_functions_and_functions_without_parameters) {
  only_kernels[handle(2)] = {{0, 16}};
  functions[handle(3)] = {};
  EXPECT_EQ(kernels.find(handle(2))->words.size(), 2u);
  const Kernel* none = kernels.find(handle(3));
  EXPECT_TRUE(none->known);
  EXPECT_TRUE(words_of(*none, nullptr).empty());
}

TEST_F(Parameters, what_the_driver_refuses_is_not_known_and_asked_for_again) {
  failing[handle(4)] = CUDA_ERROR_NOT_INITIALIZED;
  Kernel* kernel = kernels.find(handle(4));
  EXPECT_FALSE(kernel->known);
  EXPECT_FALSE(kernel->kept);
  uint64_t word = 1;
  void* parameters[] = {&word};
  EXPECT_FALSE(for_each_word(*kernel, parameters, nullptr, [](uint64_t) {}));
  failing.clear();
  functions[handle(4)] = {{0, 8}};
  EXPECT_TRUE(kernels.find(handle(4))->known);
}

TEST_F(Parameters, a_driver_without_the_query_or_with_metadata) {
  Kernels old{{nullptr, nullptr, nullptr, nullptr}};
  EXPECT_FALSE(old.find(handle(1))->known);
  EXPECT_TRUE(old.find(handle(1))->kept);
  Kernels told{{nullptr, nullptr, nullptr, [](CUfunction, std::vector<Slot>& slots) {
    slots = {{0, 8}, {8, 8}};
    return true;
  }}};
  EXPECT_EQ(told.find(handle(1))->words.size(), 2u);
}

TEST_F(Parameters, the_packed_buffer_is_seen_whole_also_without_a_layout_and_beyond_4_KiB) {
  std::vector<uint64_t> buffer(1000);
  for (size_t i = 0; i < buffer.size(); ++i) buffer[i] = i;
  size_t bytes = buffer.size() * 8 - 3;  // the last word is not whole
  void* extra[] = {reinterpret_cast<void*>(1), buffer.data(), reinterpret_cast<void*>(2), &bytes,
                   nullptr};
  const Kernel unknown;
  const Words words = words_of(unknown, nullptr, extra);
  ASSERT_EQ(words.size(), 999u);
  EXPECT_EQ(words.back(), 998u);
}

TEST_F(Parameters, lists_that_a_driver_refuses_are_not_followed) {
  const Kernel unknown;
  size_t bytes = 8;
  uint64_t word = 3;
  void* odd[] = {reinterpret_cast<void*>(7), &word, nullptr};
  void* no_buffer[] = {reinterpret_cast<void*>(2), &bytes, nullptr};
  void* no_size[] = {reinterpret_cast<void*>(2), nullptr, nullptr};
  std::vector<void*> endless;
  for (int i = 0; i < 100; ++i) endless.insert(endless.end(), {reinterpret_cast<void*>(1), &word});
  for (void** list : {odd, no_buffer, no_size, endless.data()})
    EXPECT_TRUE(words_of(unknown, nullptr, list).empty());
}

TEST_F(Parameters, more_functions_than_are_kept_still_answer) {
  constexpr uintptr_t many = 70'000;
  for (uintptr_t i = 1; i <= many; ++i)
    functions[handle(i)] = {{0, static_cast<uint32_t>(8 + 8 * (i % 3))}};
  for (uintptr_t i = 1; i <= many; ++i)
    ASSERT_EQ(kernels.find(handle(i))->words.size(), 1 + i % 3);
  for (uintptr_t i = 1; i <= many; i += 97)
    ASSERT_EQ(kernels.find(handle(i))->words.size(), 1 + i % 3);
}

// A random layout, read the simple way: all of the packed buffer, and which words a parameter has.
TEST_F(Parameters, random_layouts_give_the_words_of_the_packed_buffer) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::vector<Slot> slots;
    uint32_t at = 0;
    for (unsigned n = random() % 12; n > 0; --n) {
      const uint32_t alignment = 1u << random() % 5, bytes = 1 + random() % 40;
      at = (at + alignment - 1) / alignment * alignment;
      slots.push_back({at, bytes});
      at += bytes;
    }
    std::vector<unsigned char> packed(at);
    for (auto& byte : packed) byte = static_cast<unsigned char>(random());
    functions[handle(seed + 1)] = slots;
    std::vector<void*> parameters;
    std::vector<std::vector<unsigned char>> values;
    Words expected;
    for (const Slot& slot : slots) {
      values.emplace_back(packed.begin() + slot.offset,
                          packed.begin() + slot.offset + slot.bytes);
      for (uint32_t word = (slot.offset + 7) / 8 * 8; word + 8 <= slot.offset + slot.bytes;
           word += 8) {
        uint64_t value;
        std::memcpy(&value, &packed[word], 8);
        expected.push_back(value);
      }
    }
    for (auto& value : values) parameters.push_back(value.data());
    EXPECT_EQ(words_of(*kernels.find(handle(seed + 1)), parameters.data()), expected)
        << "seed " << seed;
  }
}

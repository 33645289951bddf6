// What modules' images say of their kernels' parameters, and the walk over a launch's buffers by
// it. An input: a byte, what the lists of a launch are drawn from, and an image.
//
// Beyond no crash: nothing is read behind the image's end, a parameter's or a packed buffer's (each
// has its own allocation); parameters lie in order within the bank, which 16 bits number; the words
// that are seen are those that a second walk here sees, all and once.
#include <memory>
#include <vector>

#include "allocator/preload/images.h"
#include "allocator/preload/parameters.h"
#include "tests/fuzz/fuzz.h"

using namespace firn;
using namespace firn::preload;

namespace {

constexpr size_t bank_most = UINT16_MAX;
const std::vector<Slot>* told_slots = nullptr;

bool metadata(CUfunction, std::vector<Slot>& slots) {
  slots = *told_slots;
  return true;
}

uint64_t word_at(const char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

/// Where each parameter's bytes are: exactly so many.
struct Launch {
  std::vector<std::unique_ptr<char[]>> values;
  std::vector<void*> pointers;
};

Launch launch_of(const std::vector<Slot>& slots, fuzz::Draw& draw) {
  Launch launch;
  for (const Slot& slot : slots) {
    launch.values.emplace_back(new char[slot.bytes]);
    for (uint32_t i = 0; i < slot.bytes; ++i)
      launch.values.back()[i] = static_cast<char>(slot.offset + i * 31);
    const bool null = draw.upto(7) == 7;
    launch.pointers.push_back(null ? nullptr : launch.values.back().get());
  }
  return launch;
}

void check_slots(const std::vector<Slot>& slots) {
  size_t end = 0;
  for (const Slot& slot : slots) {
    FUZZ_CHECK(slot.bytes > 0 && slot.offset >= end, "parameters out of order");
    end = size_t{slot.offset} + slot.bytes;
    FUZZ_CHECK(end <= bank_most, "a parameter of %u bytes at %u", slot.bytes, slot.offset);
  }
}

void check_parameters(const std::vector<Slot>& slots, fuzz::Draw& draw) {
  told_slots = &slots;
  ParameterQueries queries;
  queries.metadata = metadata;
  Kernels kernels(queries);
  Kernel* kernel = kernels.find(reinterpret_cast<CUfunction>(uintptr_t{0x1000}));
  FUZZ_CHECK(kernel->known && kernel->slots == slots, "the layout");
  Launch launch = launch_of(slots, draw);
  std::vector<uint64_t> expected, seen;
  for (size_t i = 0; i < slots.size(); ++i)
    for (uint32_t at = 0; launch.pointers[i] && at + 8 <= slots[i].bytes; ++at)
      if ((slots[i].offset + at) % 8 == 0)
        expected.push_back(word_at(static_cast<const char*>(launch.pointers[i]) + at));
  launch.pointers.push_back(nullptr);
  const bool told = for_each_word(*kernel, launch.pointers.data(), nullptr,
                                  [&](uint64_t word) { seen.push_back(word); });
  FUZZ_CHECK(told && seen == expected, "%zu words of %zu", seen.size(), expected.size());
}

/// A list of pairs with an end, as cuLaunchKernel's `extra`: one packed buffer, and its size, which
/// is at most the buffer's own.
void check_packed(fuzz::Draw& draw) {
  const std::string bytes = draw.bytes(draw.number<uint8_t>());
  const std::unique_ptr<char[]> buffer(new char[bytes.size()]);
  std::memcpy(buffer.get(), bytes.data(), bytes.size());
  size_t size = bytes.size();
  void *const marker_buffer = reinterpret_cast<void*>(1), *const marker_bytes =
                                                              reinterpret_cast<void*>(2);
  std::vector<void*> extra;
  bool good = true, has_buffer = false, has_bytes = false;
  const unsigned pairs = draw.upto(10);
  for (unsigned i = 0; i < pairs; ++i) {
    switch (draw.upto(5)) {
      case 0:
      case 1:
        extra.insert(extra.end(), {marker_buffer, buffer.get()});
        has_buffer = has_buffer || good;
        break;
      case 2:
      case 3:
        extra.insert(extra.end(), {marker_bytes, &size});
        has_bytes = has_bytes || good;
        break;
      case 4:
        extra.insert(extra.end(), {marker_bytes, nullptr});
        good = false;
        break;
      default:
        extra.insert(extra.end(), {reinterpret_cast<void*>(draw.number<uint64_t>() | 4), &size});
        good = false;
    }
  }
  extra.push_back(nullptr);
  if (pairs > 8) good = false;
  std::vector<uint64_t> expected, seen;
  if (good && has_buffer && has_bytes)
    for (size_t at = 0; at + 8 <= size; at += 8) expected.push_back(word_at(buffer.get() + at));
  const Kernel nothing;
  const bool told = for_each_word(nothing, nullptr, extra.data(),
                                  [&](uint64_t word) { seen.push_back(word); });
  FUZZ_CHECK(told && seen == expected, "%zu words of %zu", seen.size(), expected.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Draw all(data, size);
  const std::string lists = all.bytes(all.number<uint8_t>());
  const std::string image = all.rest();
  fuzz::Draw draw(reinterpret_cast<const uint8_t*>(lists.data()), lists.size());
  const std::unique_ptr<char[]> exact(new char[image.size()]);
  std::memcpy(exact.get(), image.data(), image.size());
  for (const auto& [name, slots] : layouts_of(exact.get(), image.size())) {
    check_slots(slots);
    check_parameters(slots, draw);
  }
  check_packed(draw);
  return 0;
}

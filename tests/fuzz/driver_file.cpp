// Where the stand-in finds the real driver: names of libraries, the loader's cache, and the
// process's own map. An input: a byte of which of them, and its bytes.
//
// Beyond no crash: nothing behind the cache's end is read (it has its own allocation), what is
// found there is a text within it under that name; a name is a driver's only when it is one by a
// plain rule.
#include <memory>

#include "tests/fuzz/fuzz.h"

extern "C" {
#include "allocator/preload/real_driver.h"

void* firn_targets[1];
const char* fuzz_maps = nullptr;
size_t fuzz_maps_bytes = 0;

/// real_driver.c is compiled with this in fopen's place.
FILE* fuzz_fopen(const char*, const char*) {
  return ::fmemopen(const_cast<char*>(fuzz_maps), fuzz_maps_bytes, "r");
}
int fuzz_mapped_file(const void* address, char* path, size_t size);
}

namespace {

using namespace firn;

const char* asked_first = nullptr;
int take_second(const char* path) {
  if (!asked_first) {
    asked_first = path;
    return 0;
  }
  return 1;
}

void check_cache(const std::string& bytes) {
  const std::unique_ptr<char[]> exact(new char[bytes.size()]);
  std::memcpy(exact.get(), bytes.data(), bytes.size());
  asked_first = nullptr;
  const char* found =
      firn_find_in_cache(exact.get(), bytes.size(), "libcuda.so.1", take_second);
  for (const char* each : {static_cast<const char*>(asked_first), found})
    if (each)
      FUZZ_CHECK(each >= exact.get() && each + std::strlen(each) < exact.get() + bytes.size(),
                 "a path outside the cache");
}

void check_name(const std::string& name) {
  const std::string text = name.c_str();
  const std::string begin = "libcuda.so";
  bool expected = text == begin;
  if (text.starts_with(begin + ".") && text.size() > begin.size() + 1)
    expected = text.find_first_not_of("0123456789.", begin.size() + 1) == std::string::npos;
  FUZZ_CHECK((firn_is_driver_name(text.c_str()) != 0) == expected, "%s", text.c_str());
}

void check_maps(const std::string& text) {
  if (text.empty()) return;
  fuzz_maps = text.data();
  fuzz_maps_bytes = text.size();
  const std::unique_ptr<char[]> path(new char[64]);
  if (!fuzz_mapped_file(reinterpret_cast<void*>(uintptr_t{0x7f0000001000}), path.get(), 64)) return;
  FUZZ_CHECK(path[0] == '/' && std::strlen(path.get()) < 64, "a path");
  FUZZ_CHECK(text.find(path.get()) != std::string::npos, "%s is not there", path.get());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Draw draw(data, size);
  const unsigned which = draw.upto(2);
  const std::string bytes = draw.rest();
  if (which == 0) check_cache(bytes);
  if (which == 1) check_name(bytes);
  if (which == 2) check_maps(bytes);
  return 0;
}

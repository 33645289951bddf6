// What a tag says: which block, which of its versions, which 4 KiB of it.
#pragma once

#include <cstdint>

namespace firn::sim {

struct Tag {
  uint64_t bits = 0;
  static Tag make(uint64_t block, uint64_t version, uint64_t page = 0) {
    return Tag{block << 40 | version << 20 | page};
  }
  uint64_t block() const { return bits >> 40; }
  uint64_t version() const { return bits >> 20 & 0xFFFFF; }
  uint64_t page() const { return bits & 0xFFFFF; }
  uint64_t content() const { return bits >> 20; }
};

}  // namespace firn::sim

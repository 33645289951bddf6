// Tags in place of bytes (firn/software_gpu.h): copies, fills and kernels of a GPU without bytes
// move them, so that wrong bytes are seen although none are kept.
//
// Frames own theirs, by physical address: one that is mapped elsewhere brings what it held. Host
// memory has them by address, made when it is first written. Lock: Gpu::mutex.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace firn::software {

struct Body;
struct Rows;

/// Tags of host memory, in chunks.
class HostTags {
 public:
  static constexpr uint64_t chunk_bytes = 2u << 20;
  /// From `address` on; `count` gets how many lie there in one piece.
  uint64_t* at(uint64_t address, uint64_t* count);
  void clear();

 private:
  using Chunk = std::array<uint64_t, chunk_bytes / 4096>;
  std::unordered_map<uint64_t, std::unique_ptr<Chunk>> chunks_;
  uint64_t last_ = UINT64_MAX;  // chunk that was asked for last
  Chunk* last_chunk_ = nullptr;
};

std::unique_ptr<uint64_t[]> undefined_tags(size_t bytes);

/// A copy of tags, from its submission to its end.
struct TagCopy {
  uint64_t to = 0, from = 0, bytes = 0;
  std::vector<uint64_t> begun;  // the source's, when it began
  bool closed = false;          // the target is in flight already
};
/// The body's copy or fill moves tags at its end. (A copy of several rows, or of parts of 4 KiB,
/// leaves torn ones.)
void make_tag_copy(const Rows& rows, Body* body);
void make_tag_fill(uint64_t to, size_t pitch, unsigned value, size_t row_bytes, size_t height,
                   Body* body);
/// Under the lock: the copy begins on its stream; its target is closed at its submission.
void begin_tags(TagCopy& copy);
void close_tags(TagCopy& copy);

}  // namespace firn::software

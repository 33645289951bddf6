// Tags in place of bytes: see tags.h.
#include "tags.h"

#include <algorithm>
#include <cstring>

#include "bodies.h"
#include "gpu.h"

namespace firn::software {

namespace {
constexpr uint64_t unit = firn_gpu_tag_bytes;

/// Calls part(tags, count) for each stretch of tags behind [address, +bytes), in order; a forbidden
/// use of mapped memory is answered before anything is done.
template <class Part>
int each(int device, uint64_t address, uint64_t bytes, bool writes, Part&& part) {
  AddressSpace& space = gpu().space;
  uint64_t at = address / unit * unit;
  const uint64_t end = round_up(address + bytes, unit);
  const bool mapped = space.reserved(at);
  if (mapped)
    for (uint64_t look = at; look < end;) {
      const Mapping* mapping = space.mapping_around(look);
      if (!mapping || !mapping->frame->tags) return firn_gpu_tags_unmapped;
      if (device >= 0) {
        const uint8_t access = mapping->access[device];
        if (access == CU_MEM_ACCESS_FLAGS_PROT_NONE) return firn_gpu_tags_unmapped;
        if (writes && access != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return firn_gpu_tags_read_only;
      }
      look = mapping->base + mapping->bytes;
    }
  while (at < end) {
    uint64_t count = 0;
    uint64_t* tags = nullptr;
    if (mapped) {
      const Mapping* mapping = space.mapping_around(at);
      tags = mapping->frame->tags.get() + (at - mapping->base) / unit;
      count = (mapping->base + mapping->bytes - at) / unit;
    } else {
      tags = gpu().host_tags.at(at, &count);
    }
    count = std::min(count, (end - at) / unit);
    if (!part(tags, count)) return firn_gpu_tags_differ;
    at += count * unit;
  }
  return firn_gpu_tags_done;
}

int set_all(uint64_t address, uint64_t bytes, uint64_t tag) {
  return each(-1, address, bytes, true, [&](uint64_t* tags, uint64_t count) {
    std::fill_n(tags, count, tag);
    return true;
  });
}

/// The copy's end: moves the tags read at its begin, where the source still has them.
void end_tags(TagCopy& copy) {
  if (copy.begun.empty()) {
    (void)set_all(copy.to, copy.bytes, firn_gpu_tag_torn);
    return;
  }
  size_t done = 0;
  (void)each(-1, copy.from, copy.bytes, false, [&](uint64_t* tags, uint64_t count) {
    uint64_t* begun = copy.begun.data() + done;
    if (std::memcmp(begun, tags, count * sizeof *tags) != 0)
      for (uint64_t i = 0; i < count; ++i)
        if (begun[i] != tags[i]) begun[i] = firn_gpu_tag_torn;
    done += count;
    return true;
  });
  done = 0;
  (void)each(-1, copy.to, copy.bytes, true, [&](uint64_t* tags, uint64_t count) {
    std::memcpy(tags, copy.begun.data() + done, count * sizeof *tags);
    done += count;
    return true;
  });
}
}  // namespace

uint64_t* HostTags::at(uint64_t address, uint64_t* count) {
  const uint64_t chunk = address / chunk_bytes, within = address % chunk_bytes / unit;
  if (chunk != last_) {
    std::unique_ptr<Chunk>& made = chunks_[chunk];
    if (!made) {
      made = std::make_unique<Chunk>();
      made->fill(firn_gpu_tag_undefined);
    }
    last_ = chunk;
    last_chunk_ = made.get();
  }
  *count = last_chunk_->size() - within;
  return last_chunk_->data() + within;
}

void HostTags::clear() { *this = HostTags(); }

std::unique_ptr<uint64_t[]> undefined_tags(size_t bytes) {
  const size_t count = bytes / unit;
  auto tags = std::make_unique_for_overwrite<uint64_t[]>(count);
  std::fill_n(tags.get(), count, uint64_t{firn_gpu_tag_undefined});
  return tags;
}

void make_tag_copy(const Rows& rows, Body* body) {
  auto copy = std::make_shared<TagCopy>();
  copy->to = rows.to;
  copy->bytes = rows.to_span();
  if (rows.rows == 1 && rows.slices == 1 && rows.to % unit == 0 && rows.from % unit == 0)
    copy->from = rows.from;
  body->tags = copy;
  body->run = [copy] {
    Lock lock(gpu().mutex);
    end_tags(*copy);
  };
}

void make_tag_fill(uint64_t to, size_t pitch, unsigned value, size_t row_bytes, size_t height,
                   Body* body) {
  body->run = [=] {
    Lock lock(gpu().mutex);
    for (size_t row = 0; row < height; ++row)
      (void)set_all(to + row * pitch, row_bytes, firn_gpu_tag_filled + (value & 0xFF));
  };
}

void begin_tags(TagCopy& copy) {
  if (copy.from) {
    copy.begun.resize(round_up(copy.bytes, unit) / unit);
    size_t done = 0;
    const int read = each(-1, copy.from, copy.bytes, false, [&](uint64_t* tags, uint64_t count) {
      std::memcpy(copy.begun.data() + done, tags, count * sizeof *tags);
      done += count;
      return true;
    });
    if (read != firn_gpu_tags_done) copy.begun.clear();
  }
  if (!copy.closed) (void)set_all(copy.to, copy.bytes, firn_gpu_tag_in_flight);
}

void close_tags(TagCopy& copy) {
  if (copy.closed || !copy.begun.empty() || !gpu().space.reserved(copy.to)) return;
  copy.closed = true;
  (void)set_all(copy.to, copy.bytes, firn_gpu_tag_in_flight);
}

FIRN_GPU_API int firnGpuTagsFill(int device, uint64_t address, uint64_t bytes, uint64_t first) {
  Lock lock(gpu().mutex);
  const int open = each(device, address, bytes, true, [](const uint64_t* tags, uint64_t count) {
    return std::find(tags, tags + count, uint64_t{firn_gpu_tag_in_flight}) == tags + count;
  });
  if (open == firn_gpu_tags_differ) return firn_gpu_tags_early;
  if (open != firn_gpu_tags_done) return open;
  return each(device, address, bytes, true, [&](uint64_t* tags, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) tags[i] = first + i;
    first += count;
    return true;
  });
}

FIRN_GPU_API int firnGpuTagsCompare(int device, uint64_t address, uint64_t bytes, uint64_t first,
                                    uint64_t* at, uint64_t* found) {
  Lock lock(gpu().mutex);
  uint64_t done = 0;
  return each(device, address, bytes, false, [&](const uint64_t* tags, uint64_t count) {
    uint64_t differences = 0;
    for (uint64_t i = 0; i < count; ++i) differences |= tags[i] ^ (first + done + i);
    for (uint64_t i = 0; differences && i < count; ++i)
      if (tags[i] != first + done + i) {
        *at = done + i;
        *found = tags[i];
        return false;
      }
    done += count;
    return true;
  });
}

FIRN_GPU_API int firnGpuTagsRead(uint64_t address, uint64_t bytes, uint64_t* out) {
  Lock lock(gpu().mutex);
  return each(-1, address, bytes, false, [&](const uint64_t* tags, uint64_t count) {
    std::memcpy(out, tags, count * sizeof *tags);
    out += count;
    return true;
  });
}

FIRN_GPU_API int firnGpuTagsWrite(uint64_t address, uint64_t bytes, const uint64_t* from) {
  Lock lock(gpu().mutex);
  return each(-1, address, bytes, true, [&](uint64_t* tags, uint64_t count) {
    std::memcpy(tags, from, count * sizeof *tags);
    from += count;
    return true;
  });
}

}  // namespace firn::software

// Copies and fills as a program gives them: their spans, and what the pointer tables learn. An
// input: what the host holds, then a list of copies, plain or as structures of two and three
// dimensions, of any numbers.
//
// Beyond no crash: a copy is refused exactly where, in exact arithmetic, it leaves the block that
// it begins in; nothing is read outside the host's buffer, which has its own allocation; after the
// copies every aligned word of the device's memory that is an address is one that the tables know,
// and, unless a part of a word was overwritten, the tables know no other.
#include "allocator/preload/copies.h"

#include <memory>
#include <optional>
#include <vector>

#include "allocator/preload/captures.h"
#include "allocator/preload/engines.h"
#include "allocator/preload/globals.h"
#include "allocator/preload/graphs.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/inspections.h"
#include "tests/fuzz/fuzz.h"

namespace {
constexpr uint64_t arena_base = uint64_t{0x7000} << 32, arena_bytes = 4u << 20;
constexpr uint64_t memory_bytes = 24u << 10;  // of the arena, that the model has
struct Extent {
  uint64_t at, bytes;
};
constexpr Extent blocks[] = {{0, 4096}, {8192, 520}, {8720, 24}, {16384, 8192}};
constexpr size_t host_bytes = 4096;
}  // namespace

// What copies.cpp calls of the rest of the library.
namespace firn::preload {

View& Views::of(Engine& engine) {
  views_[0].engine = &engine;
  views_[0].arena = {arena_base, arena_bytes};
  count_.store(1);
  return views_[0];
}
bool block_around(View& view, uint64_t address, Reached& block) {
  for (const Extent& each : blocks)
    if (address - arena_base - each.at < each.bytes) {
      block = {&view, arena_base + each.at, each.bytes};
      return true;
    }
  return false;
}
Inspections& inspections() {
  static Inspections& all = *new Inspections;
  return all;
}
Inspections::Inspections() = default;
void Inspections::begin() { begun_ = true; }
void Work::release(bool) {}
void Work::end_thrown() noexcept {}
void Work::see_host(uint64_t) {}
void Uses::add(uint64_t word) { words.push_back(word); }
bool launch_covered() { return false; }
bool serving() { return true; }
bool captures_under_way() { return false; }
CUgraph captured_into(CUstream) { return nullptr; }
void note_captured(CUgraph, const Uses&) {}
void note_enqueued(CUstream) {}
void add_global(const void*, Range) {}
CUcontext current_context() { return nullptr; }
CUcontext context_of(CUstream) { return nullptr; }

}  // namespace firn::preload

using namespace firn;
using namespace firn::preload;

namespace {

CUresult attribute(void* value, int, CUdeviceptr) {
  *static_cast<unsigned*>(value) = memory_host;
  return CUDA_SUCCESS;
}

/// The device's memory, byte by byte.
struct Model {
  std::vector<uint8_t> bytes = std::vector<uint8_t>(memory_bytes, 0);
  /// Words that were overwritten in part.
  std::vector<bool> unsure = std::vector<bool>(memory_bytes / 8, false);

  uint64_t word(size_t index) const {
    uint64_t value;
    std::memcpy(&value, bytes.data() + index * 8, 8);
    return value;
  }
  void check() const {
    std::vector<uint64_t> known;
    for (size_t i = 0; i < unsure.size(); ++i) {
      if (unsure[i]) continue;
      const uint64_t value = word(i);
      known.clear();
      tables().collect(arena_base + i * 8, 8, known);
      if (value - arena_base < arena_bytes)
        FUZZ_CHECK(known.size() == 1 && known[0] == value, "an address at %zu goes unseen", i * 8);
      else
        FUZZ_CHECK(known.empty(), "no address is at %zu", i * 8);
    }
  }
};

struct Host {
  std::unique_ptr<uint8_t[]> bytes{new uint8_t[host_bytes]};
  uint64_t at() const { return reinterpret_cast<uint64_t>(bytes.get()); }
  /// The model's or this one's; null: neither's, as a whole.
  uint8_t* find(Model& model, uint64_t address, fuzz::Wide span) const {
    if (address - at() < host_bytes && span <= host_bytes - (address - at()))
      return bytes.get() + (address - at());
    const uint64_t offset = address - arena_base;
    if (offset < memory_bytes && span <= memory_bytes - offset) return model.bytes.data() + offset;
    return nullptr;
  }
};

/// A mostly sensible number: near a block or the host's buffer, or anything.
uint64_t address_of(fuzz::Draw& draw, const Host& host, bool on_host) {
  const uint64_t near = on_host ? host.at() : arena_base + blocks[draw.upto(3)].at;
  switch (draw.upto(7)) {
    case 0: return draw.number<uint64_t>();
    case 1: return near - draw.number<uint8_t>();
    case 2:
    case 3:
    case 4: return near + uint64_t{8} * draw.upto(63);
    default: return near + draw.number<uint16_t>() % 5000;
  }
}
size_t size_of(fuzz::Draw& draw) {
  switch (draw.upto(15)) {
    case 0: return draw.number<uint64_t>();
    case 1: return SIZE_MAX - draw.number<uint8_t>();
    case 2: return draw.number<uint16_t>();
    case 3:
    case 4:
    case 5: return size_t{8} * draw.upto(31);
    default: return draw.number<uint8_t>();
  }
}

template <class Structure>
void draw_sides(Structure& from, fuzz::Draw& draw, const Host& host) {
  const bool from_host = draw.upto(1) == 0, to_host = draw.upto(7) == 0;
  from.srcMemoryType = draw.upto(15) == 0 ? draw.upto(5)
                       : from_host        ? unsigned{memory_host}
                                          : unsigned{memory_device};
  from.dstMemoryType = to_host ? unsigned{memory_host} : unsigned{memory_device};
  if (draw.upto(3) != 0) {  // one that a driver takes, as a rule
    const auto offset = [&] { return size_t{8} * draw.upto(15); };
    from.srcHost = reinterpret_cast<const void*>(host.at() + offset());
    from.srcDevice = arena_base + blocks[3].at + 64 * offset();
    from.dstHost = reinterpret_cast<void*>(host.at() + offset());
    from.dstDevice = arena_base + blocks[3].at + 64 * offset();
    from.WidthInBytes = 8 + offset();
    from.Height = 1 + draw.upto(7);
    from.srcPitch = from.WidthInBytes + size_t{8} * draw.upto(3);
    from.dstPitch = from.WidthInBytes + size_t{8} * draw.upto(3);
    return;
  }
  from.srcHost = reinterpret_cast<const void*>(address_of(draw, host, true));
  from.srcDevice = address_of(draw, host, false);
  from.dstHost = reinterpret_cast<void*>(address_of(draw, host, true));
  from.dstDevice = address_of(draw, host, false);
  from.srcXInBytes = draw.upto(3) ? 0 : size_of(draw);
  from.srcY = draw.upto(3) ? 0 : size_of(draw);
  from.dstXInBytes = draw.upto(3) ? 0 : size_of(draw);
  from.dstY = draw.upto(3) ? 0 : size_of(draw);
  from.srcPitch = size_of(draw);
  from.dstPitch = size_of(draw);
  from.WidthInBytes = size_of(draw);
  from.Height = size_of(draw);
}

Copy copy_of(fuzz::Draw& draw, const Host& host) {
  Copy copy;
  switch (draw.upto(5)) {
    case 0:
      copy = {.to = address_of(draw, host, false), .from = address_of(draw, host, true),
              .bytes = size_of(draw), .source = Copy::Source::host};
      break;
    case 1:
      copy = {.to = address_of(draw, host, false), .from = address_of(draw, host, false),
              .bytes = size_of(draw), .source = Copy::Source::device};
      break;
    case 2:
      copy = {.to = address_of(draw, host, false), .bytes = size_of(draw),
              .source = Copy::Source::none, .rows = size_of(draw), .to_pitch = size_of(draw)};
      break;
    case 3: {
      CUDA_MEMCPY2D from{};
      draw_sides(from, draw, host);
      FUZZ_CHECK(read_copy(&from, copy), "a structure");
      break;
    }
    case 4: {
      CUDA_MEMCPY3D from{};
      draw_sides(from, draw, host);
      from.srcZ = draw.upto(3) ? 0 : size_of(draw);
      from.dstZ = draw.upto(3) ? 0 : size_of(draw);
      if (draw.upto(3) != 0) {
        from.srcHeight = from.Height + draw.upto(2);
        from.dstHeight = from.Height + draw.upto(2);
        from.Depth = 1 + draw.upto(2);
      } else {
        from.srcHeight = size_of(draw);
        from.dstHeight = size_of(draw);
        from.Depth = size_of(draw);
      }
      FUZZ_CHECK(read_copy(&from, copy), "a structure");
      break;
    }
    default:
      copy = {.to = address_of(draw, host, draw.upto(1)),
              .from = address_of(draw, host, draw.upto(1)),
              .bytes = size_of(draw)};
  }
  return copy;
}

/// Exactly, from the first byte to the last.
fuzz::Wide span_of(const Copy& copy, size_t pitch, size_t slice) {
  const fuzz::Wide rows = fuzz::Wide{copy.rows - 1} * pitch;
  const fuzz::Wide slices = fuzz::Wide{copy.slices - 1} * slice;
  if (rows >> 126 || slices >> 126) return fuzz::Wide{1} << 126;  // (their sum would be too much)
  return rows + slices + copy.bytes;
}

bool leaves_its_block(uint64_t address, fuzz::Wide span) {
  if (address - arena_base >= arena_bytes) return false;  // none of Firn's
  for (const Extent& each : blocks)
    if (address - arena_base - each.at < each.bytes)
      return span > each.bytes - (address - arena_base - each.at);
  return true;
}

bool driver_takes(const Copy& copy, size_t pitch, size_t slice) {
  return (copy.rows == 1 || pitch >= copy.bytes) &&
         (copy.slices == 1 ||
          slice >= fuzz::Wide{copy.rows - 1} * pitch + copy.bytes);
}

/// The copy as a driver does it; false: it would refuse.
bool run(Model& model, const Host& host, const Copy& copy) {
  if (!driver_takes(copy, copy.to_pitch, copy.to_slice)) return false;
  uint8_t* to = host.find(model, copy.to, span_of(copy, copy.to_pitch, copy.to_slice));
  if (!to || copy.to - arena_base >= memory_bytes) return false;  // only what the device gets
  const uint8_t* from = nullptr;
  if (copy.source != Copy::Source::none) {
    if (!driver_takes(copy, copy.from_pitch, copy.from_slice)) return false;
    const bool on_device = copy.from - arena_base < memory_bytes;
    if ((copy.source == Copy::Source::host && on_device) ||
        (copy.source == Copy::Source::device && !on_device))
      return false;
    const fuzz::Wide span = span_of(copy, copy.from_pitch, copy.from_slice);
    from = host.find(model, copy.from, span);
    if (!from) return false;
    const uint64_t ends =
        copy.to + static_cast<uint64_t>(span_of(copy, copy.to_pitch, copy.to_slice));
    if (copy.from < ends && copy.to < copy.from + static_cast<uint64_t>(span)) return false;
  }
  const Model before = model;
  const uint8_t* source = from;
  for (size_t z = 0; z < copy.slices; ++z)
    for (size_t y = 0; y < copy.rows; ++y) {
      uint8_t* row = to + z * copy.to_slice + y * copy.to_pitch;
      const size_t at = static_cast<size_t>(row - model.bytes.data());
      if (source)
        std::memcpy(row, source + z * copy.from_slice + y * copy.from_pitch, copy.bytes);
      else
        std::memset(row, 0xa5, copy.bytes);
      const uint64_t source_at = copy.from + z * copy.from_slice + y * copy.from_pitch;
      const bool within_device = source && copy.from - arena_base < memory_bytes;
      for (size_t word = at / 8; word * 8 < at + copy.bytes; ++word) {
        const bool whole = word * 8 >= at && word * 8 + 8 <= at + copy.bytes;
        // (Words at odd addresses are none that the tables know, nor what they become elsewhere.)
        bool unsure = !whole;
        if (whole && within_device) {
          const uint64_t there = source_at - arena_base + (word * 8 - at);
          unsure = there % 8 != 0 || before.unsure[there / 8];
        }
        model.unsure[word] = unsure;
      }
    }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Real entries;
  static const bool made = [] {
    entries.cuPointerGetAttribute = attribute;
    real_entries.store(&entries);
    alignas(64) static char engine[64];
    (void)views().of(reinterpret_cast<Engine&>(engine));
    tables().add_arena({arena_base, arena_bytes});
    inspections().begin();
    return true;
  }();
  (void)made;
  fuzz::Draw draw(data, size);
  Host host;
  const uint64_t pattern = draw.number<uint64_t>();  // which words are addresses
  for (size_t i = 0; i < host_bytes; i += 8) {
    const uint64_t value = pattern >> (i / 8 % 61) & 1 ? arena_base + i * 3 : i;
    std::memcpy(host.bytes.get() + i, &value, 8);
  }
  Model model;
  for (unsigned steps = 0; !draw.empty() && steps < 32; ++steps) {
    const Copy copy = copy_of(draw, host);
    Work work(Where{});
    Noted noted;
    const bool taken = note_copy(copy, work, noted) == CUDA_SUCCESS;
    if (copy.bytes == 0 || copy.rows == 0 || copy.slices == 0) {
      FUZZ_CHECK(taken, "nothing was refused");
      continue;
    }
    const bool leaves =
        leaves_its_block(copy.to, span_of(copy, copy.to_pitch, copy.to_slice)) ||
        leaves_its_block(copy.from, span_of(copy, copy.from_pitch, copy.from_slice));
    FUZZ_CHECK(taken == !leaves, "%s", taken ? "it leaves its block" : "it stays within its block");
    if (!taken || !run(model, host, copy)) continue;
    if (!copy.to_host) {
      tell_tables(copy);
      const Uses uses = uses_of(copy);
      for (const Copy& again : uses.copies) {
        std::vector<uint64_t> words;
        collect_overwritten(again, words);
        tell_tables_again(again);
      }
    }
  }
  model.check();
  tables().forget(arena_base, arena_bytes);
  return 0;
}

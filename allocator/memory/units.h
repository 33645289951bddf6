// The units of memory, each with one meaning. From the smallest on:
//
//   unit      512 B       small blocks (below 1 MiB) begin at units; allocations count in units
//   page      64 KiB      large blocks count in pages; a GPU's, not the system's of 4 KiB
//   piece     2..32 MiB   a part of a block that is copied, written and read as one (firn_piece)
//   granule   2 MiB       the least that the driver allocates and maps; addresses are aligned to it
//   span      2..32 MiB   a part of a block that is mapped and unmapped as one
//   frame     2..32 MiB   one physical allocation of the driver's (a handle), of whole granules
//
// One large block of 70 MiB, spans of 32 MiB, pieces of 8 MiB:
//
//   block      |<---------------- 1,120 pages, 35 granules of addresses ---------------->|
//   spans      |<------------- 0 ------------->|<------------- 1 ------------->|<-- 2 -->|
//   frames     |            32 MiB             |            32 MiB             |  6 MiB  |
//   pieces     |   0   |   1   |   2   |   3   |   4   |   5   |   6   |   7   |    8    |
//
// The tail of the block leaves first: span 2 is unmapped once piece 8 is valid elsewhere, in
// staging (pinned host memory, memory/host_tier.h) or in a slot (room in a spill file,
// firn/store.h).
//
// Blocks share frames where their size is no whole number of granules (memory/shared_frames.h); a
// bit stands for each page of a shared frame. Words that could mean several things mean one:
//
//   place     an address range planned for one block of an iteration (lifetimes/places.h)
//   region    the range of device addresses that planned places lie in; its frames stay mapped
//             while blocks follow each other there (blocks/region.h)
//   segment   a granule that small blocks share (blocks/small_blocks.h); in the plugin what PyTorch
//             calls so: memory of one pool that is cut into pieces (pytorch_plugin/pool_segments.h)
//   extent    host memory that the system gave in one call (memory/host_tier.h)
//   range     [begin, begin + bytes) of addresses or of a file; of anything else the name says so
//   history   what was learned of a program's allocations and uses (lifetimes/history.h)
//   program   what the user runs, and what a trace has recorded of it (simulate/program_trace.h)
//   entry     a function that the driver or another library exports; torch's trace has entries too
//   candidate a block that a plan lists, to be moved while nothing has overtaken the plan
//             (lifetimes/carry_out.h)
//
// Invariants: granule_pages * page_bytes == granule_bytes; a piece lies within one span; a span
// but the last is a power of two of granules, as long as all others.
#pragma once

#include <cstdint>

namespace firn {

inline constexpr uint64_t unit_bytes = 512;
inline constexpr uint64_t page_bytes = 64u << 10;
inline constexpr uint64_t granule_bytes = 2u << 20;
inline constexpr uint32_t granule_pages = granule_bytes / page_bytes;
/// Of the largest frame, and the longest span: 32 MiB.
inline constexpr uint32_t large_frame_granules = 16;

}  // namespace firn

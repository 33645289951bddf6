// Numbers for threads, so that each can count in a cell of its own, without locked instructions. A
// thread has its number until it ends; another may have it after that, and goes on from what it finds.
// Threads beyond `cells_own` at a time share the last cell.
#pragma once

namespace firn {

inline constexpr unsigned cells = 8, cells_own = cells - 1;

/// The calling thread's, below `cells`. Takes no lock.
unsigned thread_cell();
/// All numbers that were ever given are below.
unsigned thread_cells_used();

}  // namespace firn

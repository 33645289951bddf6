// A use of a block by the processor, in host memory (Engine::on_host()): its pieces are gathered
// there, and stay at their addresses until it ends. Plain data: at_host.cpp acts on it.
//
// Owns: a reference to the staging of each piece that is there. Lock: the engine's.
#pragma once

#include <thread>
#include <vector>

#include "allocator/blocks/block.h"
#include "firn/result.h"

namespace firn {

struct HostUse {
  HostUse(Block& of, bool to_write, std::thread::id asked)
      : block(of), writes(to_write), thread(asked) {}

  Block& block;
  const bool writes;
  const std::thread::id thread;  // that asked for it

  std::vector<Staging*> held{};  // of each piece; null: it is not there yet
  bool begun = false;            // all of it is there, and what is written is nobody else's
  Error error{};                 // Code::ok, or why it cannot be had
  unsigned idle_rounds = 0;      // in a row: it lacks host memory, and nothing in sight frees any
};

}  // namespace firn

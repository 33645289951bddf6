// What the program knows of its operators' runs, and runs again when an engine asks for it.
// Owns: the runs of recipes that stand. Locks: none (one thread at a time).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "firn/remaker.h"
#include "tests/simulation/draw.h"
#include "tests/simulation/inspector.h"

namespace firn::sim {

class World;

struct Run {
  struct Named {
    void* address = nullptr;
    size_t bytes = 0;
    EngineInspector::Part part;  // that has tags
    uint32_t id = 0, version = 0;
  };
  Named output;
  std::vector<Named> inputs;
};

class ProgramRemaker final : public Remaker {
 public:
  ProgramRemaker(World& world, int device, uint64_t seed)
      : world_(world), device_(device), draw_(Draw::of(seed, 0x7ec19e)) {}
  Result<void> remake(uint64_t recipe, void* address, size_t bytes,
                      CUstream stream) noexcept override;
  const Run* of(uint64_t recipe) const;
  void add(uint64_t recipe, Run run);
  void ended(const std::vector<uint64_t>& recipes);
  static constexpr const char* said_no = "the simulation makes it not again";

 private:
  World& world_;
  const int device_;
  Draw draw_;
  std::map<uint64_t, Run> runs_;
  std::set<uint64_t> under_way_;
};

}  // namespace firn::sim

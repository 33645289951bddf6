// The operators whose results may be made again: remade.cpp has the list, and why others are not
// on it.
//
// Owns: an entry for each operator on the list that this torch has, for the process's life.
// Locks: one, while operators are first seen.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

namespace firn::pytorch {

/// An operator on the list.
struct RemadeOperator {
  c10::OperatorHandle op;
  /// Its out= overload, where that has a kernel of its own on the device and gives the same bits:
  /// the tests found others for batch normalisation of strided inputs. (Of products, it is used for
  /// float and double alone: of half numbers they found others on the software GPU.)
  std::optional<c10::OperatorHandle> into;
  /// A product's algorithm is chosen by a library at each call, from the device, shapes, addresses
  /// and settings: its results are kept only where keep_recipes() is asked for products, too.
  bool product = false;
  bool batch_norm = false;  // has running statistics, which it writes in training
  std::string label;  // "firn::remake(aten::gelu)", as profilers name it
  mutable std::atomic<uint64_t> kept{0}, made_again{0};
  mutable std::atomic<bool> differs{false};  // it made other bytes when it ran again (proof.h)
};

/// `op`'s entry, or null: it is not on the list.
const RemadeOperator* find_remade(const c10::OperatorHandle& op);

/// A line for each operator of the list and each that is named beside it: its name, a tab, and
/// "always", "products" or why it is absent; then, where it was seen, a tab, whether it has an out=
/// overload to write with (1 or 0), a tab, how often a recipe was kept, a tab, how often it was
/// made again.
std::string remade_text();

}  // namespace firn::pytorch

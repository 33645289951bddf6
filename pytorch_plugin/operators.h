// Firn's knowledge of an operator: whether it uses its tensors' bytes, which of them it writes.
//
// Owns: a process-wide table, filled as operators are first seen; those that PyTorch forgets are
// taken out. Locks: none to look up; one to add.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace firn::pytorch {

struct RemadeOperator;  // recipes/remade.h

struct OperatorInfo {
  enum class Kind : uint8_t {
    passive,    // views and metadata, and operators that only call others: nothing to hold
    allocates,  // makes memory that anything may use, and uses no byte of its inputs (empty_like)
    uses,       // has a kernel of its own, which uses its inputs and makes its results
    sliced,     // over lists: left to list_operators.h
  };
  std::string name, overload;
  Kind kind = Kind::passive;
  bool trusted = true;        // it uses nothing but what it is given and what it allocates
  bool collective = false;    // of c10d
  bool has_autocast = false;  // autocast may cast the inputs first and call again
  const RemadeOperator* remade = nullptr;  // its results may be made again: its entry on the list
  uint64_t written = 0;       // bit per argument; the 64th and later count as written
  bool writes(size_t argument) const { return argument >= 64 || ((written >> argument) & 1); }
};

OperatorInfo classify(const c10::OperatorHandle& op);

// Open addressing by the address of the schema's name, which is the operator's for its life.
struct OperatorTable {
  struct KnownOperator {
    const char* key;
    OperatorInfo info;
  };
  static constexpr size_t size = 1 << 14;
  static size_t bucket(const char* key) {
    return (reinterpret_cast<uintptr_t>(key) * 0x9e3779b97f4a7c15ull) >> (64 - 14);
  }
  static std::array<std::atomic<const KnownOperator*>, size> buckets;
};

/// Finds an operator that is new, or not in its first bucket.
const OperatorInfo* find_operator_further(const at::RecordFunction& record);

/// The operator that `record` reports, or null when it is none (a range named by a string).
inline const OperatorInfo* find_operator(const at::RecordFunction& record) {
  const char* key = record.name();
  const OperatorTable::KnownOperator* known =
      OperatorTable::buckets[OperatorTable::bucket(key)].load(std::memory_order_acquire);
  return known && known->key == key ? &known->info : find_operator_further(record);
}

/// From here on, operators that PyTorch forgets leave the table: another may get their address.
/// Call once, before the first find_operator().
void watch_registrations();

/// From now on classify() answers Kind::sliced for this operator.
void mark_sliced(const c10::OperatorName& name);

}  // namespace firn::pytorch

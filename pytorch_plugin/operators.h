// What Firn knows about an operator: whether it uses its tensors' bytes, which of them it writes.
//
// Owns: a process-wide table, filled as operators are first seen, never emptied. Locks: none to
// look up; one to add.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <string>

namespace firn::pytorch {

struct OperatorInfo {
  enum class Kind : uint8_t {
    passive,    // views and metadata, and operators that only call others: nothing to hold
    allocates,  // makes memory that anything may use, and uses no byte of its inputs (empty_like)
    uses,       // has a kernel of its own, which uses its inputs and makes its results
    sliced,     // over lists: left to list_operators.h
  };
  std::string name, overload;
  Kind kind = Kind::passive;
  bool has_autocast = false;  // autocast may cast the inputs first and call again
  uint64_t written = 0;       // bit per argument; the 64th and later count as written
  bool writes(size_t argument) const { return argument >= 64 || ((written >> argument) & 1); }
};

OperatorInfo classify(const c10::OperatorHandle& op);

/// The operator that `record` reports, or null when it is none (a range named by a string).
const OperatorInfo* find_operator(const at::RecordFunction& record);

/// From now on classify() answers Kind::sliced for this operator.
void mark_sliced(const c10::OperatorName& name);

}  // namespace firn::pytorch

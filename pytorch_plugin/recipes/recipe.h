// A recipe: the operator that wrote all bytes of a storage, with its arguments, where each tensor
// is replaced by what names its bytes. It holds no tensor and no storage.
//
// A recipe is taken of an operator that this thread runs in no other operator, since a kernel may
// write results of the operators that it calls without saying so; and only where the call is what
// reaches the device's kernel: not under functorch, Python's modes, functionalisation or a capture,
// and of no wrapper tensor. All tensors are strided ones of one device, in memory from Firn, or
// scalars of the CPU, whose value is kept; no argument is written; each result fills a storage that
// no argument and no other result has.
//
// A recipe stands until an input or the result is written or freed, as operators tell it (Writes);
// something is enqueued outside of PyTorch's own operators, which may write anything; or a setting
// of torch's changes that results depend on. (The kernel that runs is the one that is registered
// then: a program that replaces the kernels of torch's own operators meanwhile gets the new ones.)
//
// Owns: this thread's recipe in the making. Locks: none.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/Stream.h>

#include <array>
#include <cstdint>
#include <memory>

#include "pytorch_plugin/recipes/remade.h"
#include "pytorch_plugin/recipes/writes.h"

namespace firn::pytorch {

/// What names a tensor's bytes, and how they are to be read.
struct TensorName {
  static constexpr size_t dims_most = 6;
  enum class Kind : uint8_t { undefined, device, scalar };

  Kind kind = Kind::undefined;
  c10::ScalarType type = c10::ScalarType::Undefined;
  bool conjugated = false, negated = false;
  bool wrapped_number = false;  // a scalar that was a number in the program
  uint8_t dims = 0;
  const void* base = nullptr;       // where its storage begins
  uint64_t storage_bytes = 0;
  Writes::Count written = 0;        // ... and how often that had been written
  int64_t offset = 0;               // in elements
  std::array<int64_t, dims_most> sizes, strides;  // (a scalar's value is in the place of its sizes)

  c10::IntArrayRef size_list() const { return {sizes.data(), dims}; }
  c10::IntArrayRef stride_list() const { return {strides.data(), dims}; }
  const void* value() const { return sizes.data(); }
  bool unchanged() const {
    return kind != Kind::device || !base || Writes::all().unchanged(base, written);
  }
};

struct Recipe {
  static constexpr size_t arguments_most = 16, inputs_most = 8, results_most = 4;
  /// An argument is a value, or one of the inputs, or `count` of them from `first` on, as a list.
  struct Argument {
    enum class Kind : uint8_t { value, tensor, list };
    Kind kind = Kind::value;
    uint8_t first = 0, count = 0;
  };
  enum class Standing : uint8_t { stands, input_written, result_written, unseen, settings };

  const RemadeOperator* made_by = nullptr;
  c10::DeviceIndex device = 0;
  uint8_t arguments = 0, inputs = 0, results = 0;  // how many
  c10::StreamId stream = -1;      // torch's number of the stream that it ran on; -1: not known
  uint64_t settings = 0;          // settings_of(), then
  Writes::Count unseen = 0;       // Writes::unseen(), then
  std::array<Argument, arguments_most> argument;
  std::array<c10::IValue, arguments_most> value;  // none for tensors
  std::array<TensorName, inputs_most> input;
  std::array<TensorName, results_most> result;

  /// Would `result_at` be made with the bytes that the operator gave it?
  Standing standing(size_t result_at) const;
  /// Copies what is used of `from`.
  void assign(const Recipe& from);
};

/// An operator on the list is about to run, alone in this thread, and what it was given has been
/// touched: notes its arguments. What cannot be kept is left out: finish_recipe() answers null.
void begin_recipe(const RemadeOperator& made_by, const at::RecordFunction& record);
/// It has run. The recipe is this thread's until the next begin_recipe(), and may be exchanged for
/// another, whose contents do not matter; null: there is none. It does not know its stream yet.
std::unique_ptr<Recipe>* finish_recipe(const at::RecordFunction& record);

}  // namespace firn::pytorch

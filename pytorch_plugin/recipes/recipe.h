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
  enum class Kind : uint8_t { undefined, device, scalar };

  const void* base;             // where its storage begins
  uint64_t storage_bytes;
  Writes::Count written;        // ... and how often that had been written
  int64_t offset;               // in elements
  Kind kind;
  c10::ScalarType type;
  bool conjugated, negated;
  bool wrapped_number;          // a scalar that was a number in the program
  uint8_t dims;
  uint8_t first;                // in the recipe's numbers: sizes, then strides; of a scalar, its value

  bool unchanged() const {
    return kind != Kind::device || !base || Writes::all().unchanged(base, written);
  }
};

/// Its parts lie in the order in which they are written, and packed: a recipe is written at each
/// call of an operator, into memory that the caches may not have any more.
struct Recipe {
  static constexpr size_t arguments_most = 16, inputs_most = 8, results_most = 4;
  static constexpr size_t dims_most = 6, numbers_most = 128;
  /// An argument is a value; one of the inputs, or `count` of them from `first` on, as a list; or a
  /// list of `count` integers, of floating-point numbers or of truth values, or a text of `count`
  /// bytes, in the numbers from `first` on.
  struct Argument {
    enum class Kind : uint8_t { value, tensor, list, ints, doubles, bools, text };
    Kind kind;
    uint8_t first, count;
  };
  enum class Standing : uint8_t { stands, input_written, result_written, unseen, settings };

  const RemadeOperator* made_by = nullptr;
  c10::StreamId stream = -1;      // torch's number of the stream that it ran on; -1: not known
  uint64_t settings = 0;          // settings_of(), then
  Writes::Count unseen = 0;       // Writes::unseen(), then
  c10::DeviceIndex device = 0;
  uint8_t arguments = 0, inputs = 0, results = 0, numbers = 0;  // how many
  std::array<Argument, arguments_most> argument;
  std::array<TensorName, inputs_most + results_most> tensor;    // inputs, then results
  std::array<int64_t, numbers_most> number;
  std::array<c10::IValue, arguments_most> value;  // of arguments that are values

  const TensorName& input(size_t at) const { return tensor[at]; }
  const TensorName& result(size_t at) const { return tensor[inputs + at]; }
  c10::IntArrayRef sizes(const TensorName& of) const { return {number.data() + of.first, of.dims}; }
  c10::IntArrayRef strides(const TensorName& of) const {
    return {number.data() + of.first + of.dims, of.dims};
  }
  const void* scalar(const TensorName& of) const { return number.data() + of.first; }
  /// The argument as the operator had it, unless it is of tensors.
  c10::IValue value_of(size_t argument) const;

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

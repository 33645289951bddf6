// Making a storage's bytes again: the operator of its recipe runs once more, into its address.
//
// The operator runs through the dispatcher below autograd, autocast, functorch, Python's modes and
// __torch_dispatch__, without gradients, on the stream that is asked for; by its out= overload
// where that has a kernel of its own, else into a temporary that is copied. The observer does not
// see it, so that it is no work of the program's; profilers see "firn::remake(aten::gelu)".
//
// Owns: nothing. Locks: none may be held, as before any operator.
#pragma once

#include <cuda.h>

#include <c10/util/Exception.h>

#include <exception>
#include <string>

#include "pytorch_plugin/operators.h"
#include "pytorch_plugin/recipes/recipe.h"

namespace firn::pytorch {

/// The scope of all that is enqueued here: launches in it are none of the program's.
extern const OperatorInfo making_again;

/// Calls `work`, which returns an error's words: those of an exception too, which stays here.
template <class Work>
std::string words_of_errors(Work&& work) noexcept {
  try {
    try {
      return work();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    } catch (const std::exception& error) {
      return error.what();
    }
  } catch (...) {  // no memory for the words
    return {"?"};
  }
}

/// Enqueues on `stream` the work that makes `result_at` of a recipe again; its storage and its
/// inputs have memory at their addresses meanwhile, and nobody else uses the storage. Returns the
/// error; empty when all is well. After an error the bytes at the address are undefined.
std::string run_again(const Recipe& recipe, size_t result_at, CUstream stream) noexcept;

/// As run_again(), of a recipe that stands: its inputs are held on the device meanwhile. One that is
/// away comes back as before any use.
std::string make_again(const Recipe& recipe, size_t result_at, CUstream stream);

/// The bytes of the storage that begins at `base`, by the recipe that is kept for it: the error
/// says where none stands. `spoil` (tests): other bytes are written there first.
std::string make_again(const void* base, CUstream stream, bool spoil);

/// Which operator can make the bytes at `base` again ("aten::gelu"), or why it no longer can
/// ("aten::gelu: an input was written or has ended"); "" where none is kept.
std::string recipe_text(const void* base);

/// Tests: from now on every storage that an operator uses, and that has a recipe that stands, is
/// spoiled and made again before that.
void always_make_again(bool wanted);
/// Does so for the arguments of an operator that this thread is about to run.
void make_arguments_again(c10::ArrayRef<const c10::IValue> arguments);
inline std::atomic<bool> making_always{false};

}  // namespace firn::pytorch

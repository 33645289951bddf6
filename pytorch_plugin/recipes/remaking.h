// Makes a part of a device's memory again, in a program that repeats itself: chosen once for an
// iteration, and carried out in those that follow.
//
// While not all of an iteration fits (Engine::iteration()), two of them are logged
// (operator_log.h), their operators timed by events, and the engine is asked
// (Engine::ask_what_to_remake()). From then on each operator is compared with the one that was
// logged at its place: one whose result was chosen gives its recipe (given.h), and its block leaves
// behind the last operator that uses it before the choice's cut. Where the program does something else
// (an evaluation, another batch size) nothing is given or leaves, until a row of operators shows
// where it is again; where that does not come, all is logged anew.
//
// Owns: per device, the log, the answer and the place in it, for the process's life. Locks: a flag,
// tried and never waited for: a thread that finds it set is taken for something else. One more, for
// the answer to be handed over.
#pragma once

#include <ATen/record_function.h>

#include "pytorch_plugin/operators.h"
#include "pytorch_plugin/recipes/recipe.h"

namespace firn::pytorch {

class ThreadScopes;

/// An operator is about to run, alone in this thread, and what it was given has been touched. True:
/// its recipe is wanted (begin_recipe()).
bool begin_remaking(const OperatorInfo& info, const at::RecordFunction& record,
                    ThreadScopes& scopes);
/// It has run, and its holds are still there. `recipe`: of its results; null: there is none.
void end_remaking(const at::RecordFunction& record, const Recipe* recipe);
/// Its holds have been released: blocks that it was the last to use leave.
void left_operator();
/// Does left_operator() have anything to do?
inline thread_local bool leaving_here = false;
/// The storage at `base` is freed.
void note_freed(const void* base);

}  // namespace firn::pytorch

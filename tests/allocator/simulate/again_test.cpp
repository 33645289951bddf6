// Names of operators that may run again.
#include "allocator/simulate/again.h"

#include <gtest/gtest.h>

namespace firn::simulate {
namespace {

TEST(Again, by_bare_names_with_namespace_and_with_overload) {
  for (const char* name : {"gelu", "aten::gelu", "aten::gelu.out", "native_layer_norm", "mm",
                           "where.self", "_to_copy", "zeros_like", "abs", "ones"})
    EXPECT_TRUE(may_run_again(name)) << name;
}

TEST(Again, never_what_draws_adds_in_any_order_or_changes_others) {
  for (const char* name : {"bernoulli_", "aten::native_dropout", "cumsum", "scatter_add",
                           "index_put_", "embedding_dense_backward", "_fused_adamw_",
                           "_foreach_add_", "copy_", "empty", "nonzero", "gelu_backward", "", "::",
                           "gel", "geluu", "all_reduce"})
    EXPECT_FALSE(may_run_again(name)) << name;
}

TEST(Again, batch_norms_alone_leave_their_state) {
  EXPECT_TRUE(runs_again_without_state("aten::native_batch_norm"));
  EXPECT_TRUE(runs_again_without_state("_native_batch_norm_legit"));
  EXPECT_FALSE(runs_again_without_state("native_layer_norm"));
}

}  // namespace
}  // namespace firn::simulate

// What handlers take is what the driver's header says, argument by argument. (That it compiles at
// all proves that every handled entry is declared there.)
#include "tests/allocator/preload/abi_facts.h"

#include <gtest/gtest.h>

TEST(PreloadAbi, agrees_with_the_real_header) {
  const AbiFacts own = own_facts(), real = real_facts();
  ASSERT_EQ(own.size(), real.size());
  EXPECT_GT(own.size(), 200u);
  for (const auto& [what, is] : own) EXPECT_EQ(is, real.at(what)) << what;
}

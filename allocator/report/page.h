// The page: one file of HTML with everything in it, readable without a network. The trace's data
// are deflated columns of numbers, of which the page (page_*.js) draws what can be seen.
// Owns: nothing. Locks: none.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "allocator/report/lives.h"

namespace firn::report {

/// `title`: the trace's name. `budgets`: what would happen at other budgets, as the page shows it:
/// {"points": [of `firn simulate --sweep`], "machine": words}, or {"why": words}.
std::string make_page(const Lives& lives, const std::string& title,
                      const nlohmann::ordered_json& budgets);

}  // namespace firn::report

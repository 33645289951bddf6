// `firn report`: makes a trace a single page (allocator/report/). Owns: nothing. Locks: none.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace firn::command {

struct TraceReportOptions {
  std::string trace, out;  // as given
};

CLI::App* add_trace_report(CLI::App& app, TraceReportOptions& options);
int trace_report(const TraceReportOptions& options);

}  // namespace firn::command

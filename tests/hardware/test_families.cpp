// SPDX-License-Identifier: Apache-2.0
// What does a kernel cost without tables, and do the constants stand in data?
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "hardware/gpu.hpp"
#include "hardware/kernels/attention.hpp"
#include "hardware/kernels/experts.hpp"
#include "hardware/kernels/gemm.hpp"
#include "hardware/shipped.hpp"
#include "hardware/tables/kernel_tables.hpp"
#include "tests/support.hpp"

namespace moesim::test_families {

using Catch::Matchers::Contains;
using namespace test;

namespace {

GpuSpec gpu_named(const std::string& name) {
  return read_gpu(ConfigNode::from_file(source_dir() / "hardware/gpus" / (name + ".json")));
}

double us(Seconds time) { return time.count() * 1e6; }

/// Eight experts of DeepSeek-V3 (arXiv:2412.19437, section 4.2) on one GPU in fp8_block, of 256
/// spread over 32 GPUs, each with as many rows.
Cost deepseek_experts(const GpuSpec& gpu, std::int32_t rows, double tokens) {
  const GroupedGemm experts({.hidden = 7168,
                             .width = 2048,
                             .weights = Precision::fp8_block,
                             .activations = Precision::fp8_block,
                             .experts = 256,
                             .top_k = 8,
                             .held = 8},
                            gpu);
  return experts.cost(experts.rows(std::vector<std::int32_t>(8, rows)), tokens);
}

TEST_CASE("a kernel that has no constants is named, and the file that should have them") {
  CHECK_THAT(config_error([] { GpuSpec{}.kernel(gemm_kernel); }),
             Contains("\"gemm\" has no constants; hardware/families.json"));
}

}  // namespace

TEST_CASE("a fused layer copies the rows that it computes and those that its GPU holds") {
  GpuSpec gpu = gpu_named("h100");
  gpu.hbm_bandwidth = BytesPerSecond(1e12);
  KernelConstants& kernel = gpu.kernels[&grouped_gemm_kernel];
  kernel.by_precision.clear();
  const GroupedGemmShape shape{.hidden = 1000, .width = 500, .experts = 64, .top_k = 4};
  const auto time = [&](double copies, double held, double tokens) {
    kernel.copies = copies;
    kernel.held_copies = held;
    const GroupedGemm experts(shape, gpu);
    return us(experts.cost(experts.rows(std::vector<std::int32_t>{64, 6}), tokens).time);
  };
  const double bare = time(0, 0, 100);
  // A row is 2 B * (2 * 1000 + 4 * 500) = 8 kB: 70 rows are .56 MB, those of 100 tokens 3.2 MB.
  CHECK_THAT(time(1, 0, 100) - bare, WithinRel(0.56, 1e-9));
  CHECK_THAT(time(0, 2, 100) - bare, WithinRel(6.4, 1e-9));
  // Rows that an exchange brought are all that it holds.
  CHECK_THAT(time(0, 2, 0) - bare, WithinRel(1.12, 1e-9));
}

TEST_CASE("a precision's own constants go before its family's") {
  KernelConstants kernel{.launch = Seconds(1e-6),
                         .bandwidth_share = 0.5,
                         .peak_share = {{Precision::bf16, 0.5}},
                         .by_precision = {{Precision::fp8, {Seconds(2e-6), 0.75, 3}}},
                         .source = "test"};
  CHECK(kernel.of(Precision::bf16).launch == Seconds(1e-6));
  CHECK(kernel.of(Precision::fp8).launch == Seconds(2e-6));
  CHECK(kernel.of(Precision::fp8_block).bandwidth_share == 0.75);  // the nearest
  CHECK(kernel.of(Precision::nvfp4).overlap == 16);
}

TEST_CASE("a GPU that is like another takes its constants and says whose they are") {
  const GpuSpec h20 = gpu_named("h20"), h100 = gpu_named("h100");
  const KernelConstants& kernel = h20.kernel(grouped_gemm_kernel);
  CHECK(kernel.launch == h100.kernel(grouped_gemm_kernel).launch);
  CHECK(kernel.peak_share == h100.kernel(grouped_gemm_kernel).peak_share);
  CHECK_THAT(kernel.source, Contains("as H100") && Contains("not measured on this GPU"));
  CHECK_FALSE(kernel.calibration);
}

TEST_CASE("every kernel has constants in the data that is built in") {
  for (const Kernel* kernel : kernels()) {
    INFO(kernel->name);
    if (kernel->has_own(Law::roofline)) CHECK(default_constants(*kernel).bandwidth_share > 0);
    if (kernel->has_own(Law::links)) CHECK(default_link_constants(*kernel).bandwidth_share > 0);
  }
}

TEST_CASE(
    "rows of kernels name each kernel once, and what a row leaves out can be told elsewhere") {
  std::set<std::string_view> names, tables;
  for (const Kernel* kernel : kernels()) {
    INFO(kernel->name);
    CHECK(names.insert(kernel->name).second);
    CHECK_FALSE(kernel->summary.empty());
    CHECK((kernel->law != Law::none || kernel->table != nullptr));
    CHECK(kernel->constants().has_own(kernel->law));
    CHECK((kernel->roofline_call == nullptr || kernel->table != nullptr));
  }
  for (const MeasuredTable* table : measured_tables()) {
    INFO(table->name);
    CHECK(tables.insert(table->name).second);
    const std::size_t loads = table->axes_that_vary(TableAxis::with_load).size();
    CHECK((loads >= 1 && loads <= 3));
  }
}

TEST_CASE("a measured point is of the kernel that its category and its words name") {
  const auto name = [](const char* category, const char* operation) {
    const Kernel* const kernel = kernel_timed_by(category, operation);
    return kernel == nullptr ? std::string_view("-") : kernel->name;
  };
  CHECK(name("moe_kernel", "DeepGEMM masked") == "masked_grouped_gemm");
  CHECK(name("moe_kernel", "fused_moe") == "grouped_gemm");
  CHECK(name("attn_decode", "MLA heads=16") == "mla_decode");
  CHECK(name("attn_decode", "GQA") == "attention_decode");
  CHECK(name("moe_a2a", "DeepEP normal combine") == "normal_all_to_all");
  CHECK(name("moe_a2a", "NVLinkOneSided combine(bf16)") == "one_sided_combine");
  CHECK(name("moe_a2a", "NVLinkOneSided dispatch(bf16)") == "one_sided_all_to_all");
  CHECK(name("moe_a2a", "DeepEP combine") == "low_latency_combine");
  CHECK(name("moe_a2a", "DeepEP dispatch") == "low_latency_all_to_all");
  CHECK(name("collective", "custom all_reduce") == "one_shot_all_reduce");
  CHECK(name("collective", "all_reduce") == "all_reduce");
  CHECK(name("collective", "broadcast") == "-");
  CHECK(name("e2e", "gemm") == "-");
}

TEST_CASE("constants of a GPU with tables are fitted on them, and say how well") {
  for (const std::string& name : shipped_names(Shipped::gpu)) {
    const GpuSpec gpu = gpu_named(name);
    if (gpu.profiles.empty()) continue;
    INFO(name);
    for (const Kernel* kernel : {&grouped_gemm_kernel, &gemm_kernel, &attention_decode_kernel,
                                 &attention_prefill_kernel}) {
      const KernelConstants& constants = gpu.kernel(*kernel);
      REQUIRE(constants.calibration);
      CHECK(constants.calibration->points >= 500);
      CHECK(constants.calibration->median_error < 0.4);
    }
  }
}

TEST_CASE("experts in prefill cost without tables what they cost with them, within 30 %") {
  const GpuSpec plain = gpu_named("h100");
  const GpuSpec tables = with_engine(plain, {"sglang", ""}, {{"engines", "any"}});
  // 8,192 tokens of each of 32 ranks, an expert's even share.
  const double measured = us(deepseek_experts(tables, 8192, 32 * 8192.0).time);
  CHECK_THAT(us(deepseek_experts(plain, 8192, 0).time), WithinRel(measured, 0.3));
}

TEST_CASE("no number of a GPU or a model stands in code") {
  struct Exception {
    std::string file, text, reason;
  };
  const std::vector<Exception> exceptions{
      {"hardware/gpu_file.cpp", "an 80 GB H100 has 81559 MiB", "an example in a key's text"},
      {"sim/expert_memory/expert_memory.cpp", "mixtral-offloading", "a paper's name"},
      {"sim/placement/placement.cpp", "DeepSeek's EPLB", "an algorithm's name"},
      {"sim/token_routing/token_routing.cpp", "8 A100, 128 experts", "where a charge is from"},
      {"sim/token_routing/token_routing.cpp", "DeepSeek LPLB", "an algorithm's name"},
      {"tools/lab/validation/verb_validate.cpp", "H100-SXM-80GB=", "an example in a message"},
      {"tools/bench/predict_operation.cpp", "clusters/h100x32.json",
       "the network that measured GPUs had between nodes"},
      {"tools/bench/serving_deployment.cpp", "clusters/h100x32.json", "the same"},
      {"tools/bench/serving_deployment.cpp", "", "recipes by version and date: open"},
      {"tools/bench/predict_serving.cpp", "", "lengths of published workloads: open"},
      {"tools/bench/mlperf.cpp", "", "data sets of a benchmark, by the model in its rows"}};
  const std::regex names(
      "\\b(a100|h100|h200|h800|h20|b200|b300|gb200|gb300|l40s|mi3[0-9]+x|rtx.?pro)|deepseek|qwen|"
      "kimi|glm-[0-9]|gpt.oss|llama|mixtral|minimax|gemma|nemotron|olmoe",
      std::regex::icase);
  for (const char* folder : {"hardware", "sim", "tools/bench", "tools/lab/validation"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source_dir() / folder)) {
      const auto ending = entry.path().extension();
      if (ending != ".cpp" && ending != ".hpp") continue;
      const std::string file =
          std::filesystem::relative(entry.path(), source_dir()).generic_string();
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) {
        const std::string code = line.substr(0, line.find("//"));
        if (!std::regex_search(code, names)) continue;
        const bool excepted = std::any_of(exceptions.begin(), exceptions.end(), [&](const auto& e) {
          return e.file == file && code.find(e.text) != std::string::npos;
        });
        INFO(file << ": " << line);
        CHECK(excepted);
      }
    }
  }
}

// nvidia-smi, torch and vLLM's files of tuned kernels write the first four.
TEST_CASE("a GPU is found by its driver's name, and no board with another memory or link") {
  CHECK(gpu_file("NVIDIA H100 80GB HBM3") == "h100");
  CHECK(gpu_file("NVIDIA A100-SXM4-80GB") == "a100_80g");
  CHECK(gpu_file("AMD_Instinct_MI300X_OAM") == "mi300x");
  CHECK(gpu_file("NVIDIA RTX PRO 6000 Blackwell Server Edition") == "rtx_pro_6000");
  CHECK(gpu_file("H200-SXM-141GB") == "h200");
  for (const char* other :
       {"NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H20-3e", "A100", "H1000"})
    CHECK(gpu_file(other).empty());
  CHECK(shipped_file(Shipped::gpu, "NVIDIA B200")->stem() == "b200");
}

}  // namespace moesim::test_families

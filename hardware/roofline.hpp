// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

#include "hardware/gpu.hpp"

namespace moesim {

/// Resources that can bound an operation.
enum class Resource { tensor_core, hbm, l2, smem, nvlink, network, latency, launch, host_link };
inline constexpr std::array<std::string_view, 9> resource_names{
    "tensor_core", "hbm", "l2", "smem", "nvlink", "network", "latency", "launch", "host_link"};

/// Work of an operation on one GPU.
struct Work {
  Flops flops{};
  Bytes hbm{};
  Bytes l2{};
  Bytes smem{};
  Bytes copied{};  ///< before and after all that: by a fused layer, at the HBM's full rate
};

/// How long an operation takes and why. `time` includes the launch floor; `bound` is the resource
/// that set it (launch when the floor is more than half of it).
struct Cost {
  Seconds time{};
  Resource bound = Resource::launch;
  Work work{};
  Evidence evidence = Evidence::calibrated;  ///< what its constants were fitted on
  FlopsPerSecond peak{};  ///< the data sheet's, of its multiplications; 0: it only moves bytes
  Watts draw{};           ///< of a GPU meanwhile, see drawing(); 0 where that is not known
};

/// The operands of a multiplication, as they are stored.
struct Operands {
  Precision weights = Precision::bf16;
  Precision activations = Precision::bf16;
};

/// Constants of one kernel with one kind of operands on one GPU, looked up
/// once.
class Roofline {
 public:
  Roofline(Operands, const Kernel&, const GpuSpec&);
  /// No work at all costs nothing.
  Cost cost(const Work&) const;

 private:
  Seconds launch_;
  double overlap_;
  BytesPerSecond hbm_, l2_, smem_, copies_;
  FlopsPerSecond peak_, reached_;
  Reach reach_;
};
/// Returns the cost of a kernel with what the GPU draws, where its power is known. The draw goes by
/// the constants of the kernel's class. It also goes by the shares of the HBM's rate and of the
/// peak that the work takes in its time.
Cost drawing(Cost, const Kernel&, const GpuSpec&);
Cost drawing(Cost, const Kernel&, const GpuPower&, BytesPerSecond hbm);

/// Cost of one piece of work, by a Roofline made for it alone.
Cost roofline(const Work&, Operands, const Kernel&, const GpuSpec&);
/// Work whose time others tell: with the peak of its multiplications, if it has any.
Cost unpriced(const Work&, Operands, const GpuSpec&);

}  // namespace moesim

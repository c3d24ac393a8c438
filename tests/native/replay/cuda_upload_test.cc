// SPDX-License-Identifier: Apache-2.0
// Uploads to CUDA devices: what is copied, for how long the memory is kept, and
// every call that may fail.
#include "replay/cuda_upload.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fake_cuda/fixture.h"
#include "replay/staging.h"

namespace dmi::replay {
namespace {

using fake_cuda::Calls;
using fake_cuda::Fail;
using fake_cuda::Gate;

constexpr uint64_t kBytes = 4096;
constexpr uint64_t kUsed = 1000;

class CudaUploadTest : public fake_cuda::FakeCudaTest {
 protected:
  CudaUploadTest() {
    fake_cuda::SetDevices(2);
    staging_ = std::make_unique<Staging>();
    Fill();
  }

  // Of the image: no part of it is like another.
  static uint8_t ByteAt(uint64_t at) {
    return static_cast<uint8_t>(1 + at + at / 256);
  }

  void Fill() {
    staging_->Grow(kBytes, 0);
    for (uint64_t i = 0; i < kUsed; ++i) staging_->image()[i] = ByteAt(i);
    staging_->Touch(kUsed);
  }

  std::shared_ptr<Upload> Begin(std::vector<UploadPart> parts = {
                                    {0, 0, kBytes}}) {
    return BeginCudaUpload(*staging_, kUsed, parts);
  }

  std::shared_ptr<CudaUpload> Found() const {
    return CudaUpload::Find(staging_->number()->value());
  }

  // As memory of a device is: dirty.
  static uint8_t* NewImage(int device, uint64_t bytes = kBytes) {
    const base::OnDevice here(device);
    return NewDevice<uint8_t>(bytes);
  }
  static cudaStream_t StreamOf(int device) {
    const base::OnDevice here(device);
    return NewStream();
  }

  // What the image holds from `offset` on.
  static std::vector<uint8_t> Want(uint64_t offset, uint64_t bytes) {
    std::vector<uint8_t> want(bytes);
    for (uint64_t i = 0; i < bytes; ++i) {
      want[i] = offset + i < kUsed ? ByteAt(offset + i) : 0;
    }
    return want;
  }
  static std::vector<uint8_t> Got(const uint8_t* image,
                                  uint64_t bytes = kBytes) {
    return {image, image + bytes};  // memory of the fake is the host's
  }

  std::unique_ptr<Staging> staging_;
};

TEST_F(CudaUploadTest, OneTransferOfWhatIsUsedAndZerosBehind) {
  uint8_t* image = NewImage(0);
  cudaStream_t stream = StreamOf(0);
  auto upload = Begin();
  EXPECT_FALSE(upload->passed());
  EXPECT_EQ(staging_->leases(), 1u);
  Found()->Copy(0, image, kBytes, stream);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_TRUE(upload->passed());
  EXPECT_EQ(Got(image), Want(0, kBytes));
  EXPECT_EQ(Calls("cudaMemcpyAsync"), 1u);
  EXPECT_EQ(Calls("cudaMemsetAsync"), 1u);
  upload.reset();
  EXPECT_EQ(staging_->leases(), 0u);
  EXPECT_EQ(Found(), nullptr);
  cudaStreamDestroy(stream);
  cudaFree(image);
}

TEST_F(CudaUploadTest, SeveralDevicesGetThePartsTheyAsked) {
  // The last one has nothing but zeros.
  const std::vector<UploadPart> parts = {
      {0, 0, 512}, {1, 512, 512}, {2, 1024, 512}, {3, 0, 512}};
  fake_cuda::SetDevices(4);
  auto upload = Begin(parts);
  std::vector<uint8_t*> images;
  std::vector<cudaStream_t> streams;
  for (const UploadPart& part : parts) {
    EXPECT_FALSE(upload->passed());
    images.push_back(NewImage(part.ordinal, part.bytes));
    streams.push_back(StreamOf(part.ordinal));
    Found()->Copy(part.ordinal, images.back(), part.bytes, streams.back());
    EXPECT_EQ(cudaStreamSynchronize(streams.back()), cudaSuccess);
    EXPECT_EQ(Got(images.back(), 512), Want(part.offset, 512));
  }
  EXPECT_TRUE(upload->passed());
  EXPECT_EQ(Calls("cudaMemcpyAsync"), 4u);
  EXPECT_EQ(Calls("cudaHostRegister"), 1u);
  for (cudaStream_t stream : streams) cudaStreamDestroy(stream);
  for (uint8_t* image : images) cudaFree(image);
}

TEST_F(CudaUploadTest, MemoryIsPinnedOnceAndUntilItIsFreed) {
  Begin();
  Begin();
  EXPECT_EQ(Calls("cudaHostRegister"), 1u);
  staging_->Grow(10 * kBytes, kUsed);
  EXPECT_EQ(Calls("cudaHostUnregister"), 1u);
  Begin();
  EXPECT_EQ(Calls("cudaHostRegister"), 2u);
  staging_.reset();
  EXPECT_EQ(Calls("cudaHostUnregister"), 2u);
}

TEST_F(CudaUploadTest, MemoryOutlivesItsStagingUntilTheCopyIsOver) {
  Gate gate;
  uint8_t* image = NewImage(0);
  cudaStream_t stream = StreamOf(0);
  ASSERT_EQ(
      fake_cuda::Launch(fake_cuda::WaitForGate, 1, 1, stream, gate.arguments()),
      cudaSuccess);
  gate.WaitUntilReached();
  auto upload = Begin();
  const int64_t number = staging_->number()->value();
  staging_.reset();  // the arena is gone, before its program ran
  CudaUpload::Find(number)->Copy(0, image, kBytes, stream);
  EXPECT_FALSE(upload->passed());
  EXPECT_EQ(Calls("cudaHostUnregister"), 0u);
  // Nobody else is given the number meanwhile.
  EXPECT_NE(Staging().number()->value(), number);
  gate.Open();
  while (!upload->passed()) std::this_thread::yield();
  EXPECT_EQ(Got(image), Want(0, kBytes));
  upload.reset();
  EXPECT_EQ(Calls("cudaHostUnregister"), 1u);
  EXPECT_EQ(Staging().number()->value(), number);
  cudaStreamDestroy(stream);
  cudaFree(image);
}

TEST_F(CudaUploadTest, MemoryStaysForGoodWhereItIsLetGoTooEarly) {
  uint8_t* image = NewImage(0);
  cudaStream_t stream = StreamOf(0);
  {
    Gate gate;
    ASSERT_EQ(fake_cuda::Launch(fake_cuda::WaitForGate, 1, 1, stream,
                                gate.arguments()),
              cudaSuccess);
    gate.WaitUntilReached();
    auto upload = Begin();
    Found()->Copy(0, image, kBytes, stream);
    upload.reset();
    EXPECT_EQ(staging_->leases(), 1u);
    staging_.reset();
    EXPECT_EQ(Calls("cudaHostUnregister"), 0u);
    gate.Open();
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }
  EXPECT_EQ(Got(image), Want(0, kBytes));
  cudaStreamDestroy(stream);
  cudaFree(image);
  EXPECT_EQ(fake_cuda::Reset().size(), 1u);  // the registration
}

TEST_F(CudaUploadTest, OnlyWhatIsDueIsCopied) {
  uint8_t* image = NewImage(0);
  cudaStream_t stream = StreamOf(0);
  EXPECT_THROW(Begin({{0, kBytes, 4}}), std::logic_error);
  EXPECT_THROW(Begin({{0, 4, kBytes}}), std::logic_error);
  auto upload = Begin();
  EXPECT_THROW(Found()->Copy(1, image, kBytes, stream), std::logic_error);
  EXPECT_THROW(Found()->Copy(0, image, 512, stream), std::logic_error);
  Found()->Copy(0, image, kBytes, stream);
  EXPECT_THROW(Found()->Copy(0, image, kBytes, stream), std::logic_error);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(Calls("cudaMemcpyAsync"), 1u);
  // One that was given up is not found, and the next one is.
  auto next = Begin();
  upload.reset();
  EXPECT_EQ(Found(), next);
  next.reset();
  EXPECT_EQ(Found(), nullptr);
  cudaStreamDestroy(stream);
  cudaFree(image);
}

// Uploads with the `after`th call of `name` failing; whether it failed.
class CudaUploadFailureTest
    : public CudaUploadTest,
      public ::testing::WithParamInterface<const char*> {
 protected:
  bool Try(uint64_t after) {
    Fail(GetParam(), after, cudaErrorUnknown);
    std::shared_ptr<Upload> upload;
    try {
      upload = Begin({{0, 0, kBytes}, {1, 0, kBytes}});
      for (int device : {0, 1}) {
        Found()->Copy(device, images_[device], kBytes, streams_[device]);
      }
      for (cudaStream_t stream : streams_) cudaStreamSynchronize(stream);
      while (!upload->passed()) std::this_thread::yield();
      return Calls(GetParam()) <= after;
    } catch (const base::CudaError& error) {
      EXPECT_NE(std::string(error.what()).find(GetParam()), std::string::npos)
          << error.what();
      EXPECT_NE(std::string(error.what()).find("cudaErrorUnknown"),
                std::string::npos);
      // As long as the program runs, the upload is held.
      for (cudaStream_t stream : streams_) cudaStreamSynchronize(stream);
      return false;
    }
  }

  void SetUp() override {
    for (int device : {0, 1}) {
      images_.push_back(NewImage(device));
      streams_.push_back(StreamOf(device));
    }
  }
  void TearDown() override {
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    for (uint8_t* image : images_) cudaFree(image);
    staging_.reset();
  }

  std::vector<uint8_t*> images_;
  std::vector<cudaStream_t> streams_;
};

// Whatever fails: nothing hangs, the memory is free again, and the next upload
// is whole.
TEST_P(CudaUploadFailureTest, LeavesTheStagingUsable) {
  const uint64_t before = Calls(GetParam());
  ASSERT_TRUE(Try(~uint64_t{0} >> 1));
  const uint64_t calls = Calls(GetParam()) - before;
  ASSERT_GT(calls, 0u);
  for (uint64_t after = 0; after < calls; ++after) {
    // Pinning is done again too.
    staging_ = std::make_unique<Staging>();
    Fill();
    Try(after);
    EXPECT_EQ(staging_->leases(), 0u) << after;
    EXPECT_EQ(Found(), nullptr);
    int device = -1;
    cudaGetDevice(&device);
    // Unless it was the way back that failed.
    if (std::string(GetParam()) != "cudaSetDevice") {
      EXPECT_EQ(device, 0);
    }
    cudaSetDevice(0);
    for (uint8_t* image : images_) std::memset(image, 0xAA, kBytes);
    ASSERT_TRUE(Try(~uint64_t{0} >> 1));
    for (uint8_t* image : images_) EXPECT_EQ(Got(image), Want(0, kBytes));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Calls, CudaUploadFailureTest,
    ::testing::Values("cudaGetDevice", "cudaSetDevice",
                      "cudaThreadExchangeStreamCaptureMode",
                      "cudaEventCreateWithFlags", "cudaHostRegister",
                      "cudaMemcpyAsync", "cudaMemsetAsync", "cudaEventRecord",
                      "cudaEventQuery", "cudaStreamSynchronize"),
    [](const auto& info) { return std::string(info.param); });

TEST_F(CudaUploadTest, PinningThatFailsSaysWhatToDo) {
  Fail("cudaHostRegister", 0, cudaErrorMemoryAllocation);
  try {
    Begin();
    FAIL();
  } catch (const base::CudaError& error) {
    const std::string text = error.what();
    for (const char* part : {"cudaHostRegister of 1 MiB", "smaller arena",
                             "cudaErrorMemoryAllocation"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  EXPECT_EQ(staging_->leases(), 0u);
}

TEST_F(CudaUploadTest, MemoryInDoubtIsKept) {
  uint8_t* image = NewImage(0);
  cudaStream_t stream = StreamOf(0);
  auto upload = Begin();
  Fail("cudaEventRecord", 0, cudaErrorUnknown);
  Fail("cudaStreamSynchronize", 0, cudaErrorUnknown);
  EXPECT_THROW(Found()->Copy(0, image, kBytes, stream), base::CudaError);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_FALSE(upload->passed());
  upload.reset();
  EXPECT_EQ(staging_->leases(), 1u);
  cudaStreamDestroy(stream);
  cudaFree(image);
  staging_.reset();
  EXPECT_EQ(fake_cuda::Reset().size(), 1u);
}

}  // namespace
}  // namespace dmi::replay

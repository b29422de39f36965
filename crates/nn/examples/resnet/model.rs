//! ResNets whose parameters have torchvision's names, so that safetensors files of torchvision's weights can be
//! loaded.

use warpline::functional::{MaxPoolOptions, adaptive_avg_pool2d, max_pool2d};
use warpline::{Error, Result, Tensor};
use warpline_nn::{BatchNorm2d, Conv2d, ConvOptions, Forward, Linear, Module, Sequential};

/// Channels of the four stages, before the expansion of bottlenecks.
const WIDTHS: [usize; 4] = [64, 128, 256, 512];

/// A ResNet. [`ResNet::new`] takes its depth.
#[derive(Clone, Module)]
pub(crate) struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    layer1: Vec<Block>,
    layer2: Vec<Block>,
    layer3: Vec<Block>,
    layer4: Vec<Block>,
    fc: Linear,
}

/// Two convolutions of 3 × 3, or a bottleneck: a convolution of 3 × 3 between two convolutions of 1 × 1.
#[derive(Clone, Module)]
struct Block {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    conv3: Option<Conv2d>,
    bn3: Option<BatchNorm2d>,
    downsample: Option<Sequential>,
}

fn conv(inputs: usize, outputs: usize, size: usize, stride: usize) -> Result<Conv2d> {
    let options = ConvOptions::new().stride(stride).padding(size / 2).bias(false);
    Conv2d::new(inputs, outputs, size, options)
}

impl Block {
    fn new(inputs: usize, width: usize, stride: usize, is_bottleneck: bool) -> Result<Self> {
        let outputs = if is_bottleneck { 4 * width } else { width };
        let downsample = (stride != 1 || inputs != outputs).then(|| -> Result<_> {
            let conv = conv(inputs, outputs, 1, stride)?;
            Ok(Sequential::new().with(conv).with(BatchNorm2d::new(outputs, ())?))
        });
        let [first, second] =
            if is_bottleneck { [(1, 1), (3, stride)] } else { [(3, stride), (3, 1)] };
        let third = is_bottleneck.then(|| conv(width, outputs, 1, 1)).transpose()?;
        let norm = is_bottleneck.then(|| BatchNorm2d::new(outputs, ())).transpose()?;
        Ok(Self {
            conv1: conv(inputs, width, first.0, first.1)?,
            bn1: BatchNorm2d::new(width, ())?,
            conv2: conv(width, width, second.0, second.1)?,
            bn2: BatchNorm2d::new(width, ())?,
            conv3: third,
            bn3: norm,
            downsample: downsample.transpose()?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut y = self.bn1.forward(&self.conv1.forward(x)?)?.relu()?;
        y = self.bn2.forward(&self.conv2.forward(&y)?)?;
        if let (Some(conv), Some(norm)) = (&self.conv3, &self.bn3) {
            y = norm.forward(&conv.forward(&y.relu()?)?)?;
        }
        match &self.downsample {
            Some(downsample) => y.add(&downsample.forward(x)?)?.relu(),
            None => y.add(x)?.relu(),
        }
    }
}

impl ResNet {
    /// Creates a ResNet of 18, 34, 50, 101 or 152 layers.
    pub(crate) fn new(depth: usize, classes: usize) -> Result<Self> {
        let blocks = match depth {
            18 => [2, 2, 2, 2],
            34 | 50 => [3, 4, 6, 3],
            101 => [3, 4, 23, 3],
            152 => [3, 8, 36, 3],
            _ => {
                let reason = format!(
                    "there is no ResNet of {depth} layers, only of 18, 34, 50, 101 and 152"
                );
                return Err(Error::invalid("resnet", reason));
            }
        };
        let is_bottleneck = depth >= 50;
        let expansion = if is_bottleneck { 4 } else { 1 };
        let mut inputs = WIDTHS[0];
        let mut stage = |i: usize| -> Result<Vec<Block>> {
            let width = WIDTHS[i];
            (0..blocks[i])
                .map(|k| {
                    let stride = if i > 0 && k == 0 { 2 } else { 1 };
                    let block = Block::new(inputs, width, stride, is_bottleneck);
                    inputs = expansion * width;
                    block
                })
                .collect()
        };
        let [layer1, layer2, layer3, layer4] = [stage(0)?, stage(1)?, stage(2)?, stage(3)?];
        Ok(Self {
            conv1: Conv2d::new(3, 64, 7, ConvOptions::new().stride(2).padding(3).bias(false))?,
            bn1: BatchNorm2d::new(64, ())?,
            layer1,
            layer2,
            layer3,
            layer4,
            fc: Linear::new(expansion * WIDTHS[3], classes, ())?,
        })
    }

    /// Returns the logits, `[batch, classes]`, of images, `[batch, 3, height, width]`.
    pub(crate) fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let x = self.bn1.forward(&self.conv1.forward(images)?)?.relu()?;
        let mut x = max_pool2d(&x, 3, MaxPoolOptions::new().stride(2).padding(1))?;
        for block in [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().flatten()
        {
            x = block.forward(&x)?;
        }
        self.fc.forward(&adaptive_avg_pool2d(&x, 1)?.flatten(1)?)
    }
}

impl Forward<&Tensor> for ResNet {
    type Output = Tensor;

    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        self.forward(images)
    }
}

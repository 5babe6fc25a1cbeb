// Log in with kafkajs, write a record and read it: BOOTSTRAP MECHANISM USER PASSWORD TOPIC.
import kafkajs from 'kafkajs'

const [bootstrap, mechanism, user, password, topic] = process.argv.slice(2)
const sasl = mechanism === 'OAUTHBEARER'
  ? { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: password }) }
  : { mechanism: mechanism.toLowerCase(), username: user, password }
const kafka = new kafkajs.Kafka({
  brokers: [bootstrap], sasl, retry: { retries: 0 }, logLevel: kafkajs.logLevel.NOTHING
})
try {
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic, messages: [{ value: user }] })
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: `group-${process.pid}`, retry: { retries: 5 } })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  const value = await new Promise((resolve) => consumer.run({ eachMessage: async ({ message }) => resolve(message.value) }))
  console.log('value:', value.toString())
  await consumer.disconnect()
} catch (error) {
  console.log('error:', error.message)
  process.exitCode = 1
}
